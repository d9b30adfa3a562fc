// A push as a server gets it, and what the server did with it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/messages.h"
#include "tests/simulation/walk_context.h"

namespace evergrad::simulation {

// The push of a call. Faults make some too large for the tables of a slot, and some defect.
class PushOfCall {
 public:
  PushOfCall(WalkContext& walk, const Call& call);
  PushOfCall(const PushOfCall&) = delete;
  PushOfCall& operator=(const PushOfCall&) = delete;

  const float* gradient() const { return gradient_; }
  bool beyond_budget() const { return beyond_budget_; }
  bool skip() const { return skip_; }

  ps_server::Push push;  // it refers to the members below

 private:
  alignas(64) float gradient_[kElementsMax];
  // The tables refuse a push as a whole if its rows exceed their budget.
  bool beyond_budget_ = false, skip_ = false;
  SlotSection section_;
  std::vector<float> more_;
};

// The shard before a push.
struct ShardBefore {
  ShardBefore(const ps_server::Shard& shard, ClosureId closure)
      : lsn(shard.lsn()), vlsn(shard.vlsn()), open(shard.ledger().open().contains(closure)) {}
  const std::uint64_t lsn, vlsn;
  const bool open;  // the closure of the push
};

// All members outlive the struct.
struct ServedPush {
  const Call& call;
  const PushOfCall& pushed;
  const ShardBefore& before;
  ps_server::PushCode code;
  HeldState& held;
  int process;                      // of the server
  const std::string& identity;      // of the server
  const ps_server::Ledger* sealed;  // at the seal [20a], of the shard's newest epoch; or nullptr
};

}  // namespace evergrad::simulation

// A push as a server receives it, and the server's answer.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/messages.h"
#include "tests/simulation/walk_context.h"

namespace evergrad::simulation {

// Makes the push that a Call describes. Some pushes have too many rows for the tables of a slot,
// and some contain a NaN.
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
  // `beyond_budget_` is true if the rows exceed the memory budget of their table, which then
  // refuses the push as a whole. `skip_` is true if the gradient contains a NaN.
  bool beyond_budget_ = false, skip_ = false;
  SlotSection section_;
  std::vector<float> more_;
};

// The facts about a shard before it gets a push.
struct ShardBefore {
  ShardBefore(const ps_server::Shard& shard, ClosureId closure)
      : lsn(shard.lsn()), vlsn(shard.vlsn()), open(shard.ledger().open().contains(closure)) {}
  const std::uint64_t lsn, vlsn;
  const bool open;  // whether the closure of the push is open at the shard
};

// All referenced objects must outlive the struct.
struct ServedPush {
  const Call& call;
  const PushOfCall& pushed;
  const ShardBefore& before;
  ps_server::PushCode code;
  HeldState& held;
  int process;                      // the number of the server's process
  const std::string& identity;      // the identity of the server
  const ps_server::Ledger* sealed;  // its ledger at the seal [20a]; nullptr if it is not sealed
};

}  // namespace evergrad::simulation

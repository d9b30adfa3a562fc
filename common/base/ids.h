// Each kind of id is a type of its own, so that a shard number never converts into a closure
// number.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace evergrad {

// A strong integer. `Tag` only distinguishes the types.
template <class Tag, class Rep>
class StrongId {
 public:
  using rep = Rep;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
  template <class H>
  friend H AbslHashValue(H h, StrongId id) {
    return H::combine(std::move(h), id.value_);
  }
  std::string ToString() const { return absl::StrCat(value_); }

 private:
  Rep value_{};
};

// A pair (term, n). Stamps are ordered as pairs and never reused (LEDGER.md line 4). (0,0) means
// "none yet".
template <class Tag>
struct Stamp {
  std::uint64_t term = 0;
  std::uint64_t n = 0;
  friend constexpr auto operator<=>(const Stamp&, const Stamp&) = default;
  template <class H>
  friend H AbslHashValue(H h, const Stamp& s) {
    return H::combine(std::move(h), s.term, s.n);
  }
  std::string ToString() const { return absl::StrCat(term, ".", n); }
};

// Identifies one submission of a job file. It is printed as 16 hex digits.
using JobUid = StrongId<struct JobUidTag, std::uint64_t>;
// Shards are numbered 0, 1, 2 … within a job.
using ShardId = StrongId<struct ShardIdTag, std::uint32_t>;
// Closures are numbered 0, 1, 2 … through all epochs of a job.
using ClosureId = StrongId<struct ClosureIdTag, std::uint64_t>;
// The ordinal of a push in its closure, from 0 on; below kUpdatesPerClosureMax.
using UpdateIndex = StrongId<struct UpdateTag, std::uint32_t>;
// The number of one registration of one process; every registration has a new number.
using TaskId = StrongId<struct TaskIdTag, std::uint64_t>;
using Term = StrongId<struct TermTag, std::uint64_t>;  // Number of one life of the coordinator.

using ShardEpoch = Stamp<struct ShardEpochTag>;  // One ownership of a shard.
using Attempt = Stamp<struct AttemptTag>;        // One execution of a closure.
// A version of the whole shard map (V in LEDGER.md). The `start` of a shard is also a map version:
// the one at which the shard was last rolled back (LEDGER.md line 5).
using MapVersion = Stamp<struct MapVersionTag>;

inline constexpr std::uint32_t kUpdatesPerClosureMax = 4096;  // LEDGER.md line 3.

enum class Role : std::uint8_t { kCoordinator = 0, kPsServer = 1, kWorker = 2 };
constexpr const char* RoleName(Role role) {
  switch (role) {
    case Role::kCoordinator: return "coordinator";
    case Role::kPsServer: return "ps_server";
    case Role::kWorker: return "worker";
  }
  return "unknown";
}

std::string JobUidString(JobUid uid);  // 16 hex digits.

}  // namespace evergrad

// Computes the number of updates that each shard of a job must hold when the job ends, and compares
// it with the number that the shard holds (LEDGER line 38). Pure.
//
// A shard holds the updates that were applied to its values and those that were skipped. For a
// dense shard the plan gives the number of updates, because every update of a closure touches the
// shard. For a slot of tables the data decides which updates touch the slot, and the workers report
// the number with each Done. The account computes a lower and an upper bound. The bounds are equal
// if no update was lost and no number is unknown. A shard within equal bounds holds each update
// exactly once, because its ledger accepts no update twice.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/base/interval_set.h"
#include "common/plan/plan.h"

namespace evergrad::coordinator {

class UpdateAccount {
 public:
  // A pair (shard, number of updates) for each shard that only some updates of a closure touch. All
  // updates touch every shard that is not listed.
  using TouchedLess = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

  // Returns InvalidArgument unless the shard numbers rise and are below `shards`, and each number
  // of updates is below `updates`, the number of updates of the closure.
  static absl::Status Check(const TouchedLess& less, std::uint32_t shards, std::uint32_t updates);

  // Counts the first success of a closure. Check must have returned OK. `less` is nullopt if the
  // worker did not report the numbers, because its build is older.
  void Count(std::uint32_t updates, const std::optional<TouchedLess>& less);

  // The contents of the shards when this job resumed from a former job (LEDGER line 28).
  struct Before {
    // The number of updates by shard; nullopt if the coordinator cannot read the files.
    std::optional<std::vector<std::uint64_t>> updates;
    // True if the shards held the updates of exactly those closures that count as succeeded when
    // this job begins.
    bool whole = false;
    bool another_plan = false;  // true if another plan numbered the updates
  };
  void TakeOver(Before before) { before_ = std::move(before); }

  // One shard at the end.
  struct Shard {
    std::uint32_t shard = 0;
    std::string name;           // for messages: "dense/kernel rows 0-127", "slot 3"
    bool by_plan = true;        // whether every update of every closure touches the shard
    std::uint64_t updates = 0;  // number of applied and skipped updates
  };
  // The ended closures of the job and, by shard number, the closures that each shard has lost.
  struct Ended {
    const IntervalSet& succeeded;
    const IntervalSet& dead;
    const IntervalSet& resumed;  // closures that succeeded in a former job
    const std::vector<IntervalSet>& lost;
  };
  enum class Verdict {
    kExact,  // each shard holds each update that touches it exactly once
    // No shard is outside its bounds, but the two bounds of some shard differ. The cause is that
    // updates were lost (LEDGER line 20b), or that not all numbers are known.
    kWithin,
    kDifferent,  // some shard is outside its bounds
  };
  struct Finding {
    Verdict verdict = Verdict::kExact;
    // A sentence that names a shard outside its bounds, the expected number and the number found.
    // The sentence is set only for kDifferent.
    std::string difference;
  };
  Finding Compare(const plan::Plan& plan, const Ended& ended,
                  const std::vector<Shard>& shards) const;

  // --- the journal
  const std::map<std::uint32_t, std::uint64_t>& touched_less() const { return touched_less_; }
  bool unreported() const { return unreported_; }
  const std::optional<Before>& before() const { return before_; }
  void Restore(std::map<std::uint32_t, std::uint64_t> touched_less, bool unreported,
               std::optional<Before> before);

 private:
  struct Bounds {
    std::uint64_t least = 0, most = 0;
  };
  Bounds BoundsOf(const plan::Plan& plan, const Ended& ended, const Shard& shard) const;

  // For each shard, the number of updates of the counted closures that do not touch it.
  std::map<std::uint32_t, std::uint64_t> touched_less_;
  bool unreported_ = false;
  std::optional<Before> before_;
};

}  // namespace evergrad::coordinator

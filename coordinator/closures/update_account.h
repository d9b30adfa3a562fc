// The number of updates that each shard of a job must hold when the job ends, and the comparison
// with the number that it holds (LEDGER line 38). Pure.
//
// A shard's updates are those in its values and those that were skipped. For a dense shard the plan
// gives their number, because every update of a closure touches it. For a slot of tables it depends
// on the data which updates touch it, and the workers report their number with each Done. The
// bounds are equal if nothing was lost and nothing is unknown: then the shard holds each update
// exactly once, because its ledger takes none twice.
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
  // (shard, updates) for each shard that only some updates of a closure touch. All updates touch
  // every other shard.
  using TouchedLess = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

  // InvalidArgument unless the shard numbers rise and are below `shards`, and each number of
  // updates is below the closure's.
  static absl::Status Check(const TouchedLess& less, std::uint32_t shards, std::uint32_t updates);

  // Counts the first success of a closure; the caller has called Check. nullopt: the worker did not
  // report (an older build).
  void Count(std::uint32_t updates, const std::optional<TouchedLess>& less);

  // The contents of the shards when this job took them over from a former one (LEDGER line 28).
  struct Before {
    std::optional<std::vector<std::uint64_t>>
        updates;         // by shard; nullopt: the coordinator cannot read the files
    bool whole = false;  // they held the closures that count as succeeded from the beginning, and
                         // nothing else
    bool another_plan = false;  // another plan than this job's numbered their updates
  };
  void TakeOver(Before before) { before_ = std::move(before); }

  // One shard at the end.
  struct Shard {
    std::uint32_t shard = 0;
    std::string name;           // for messages: "dense/kernel rows 0-127", "slot 3"
    bool by_plan = true;        // every update of every closure touches the shard
    std::uint64_t updates = 0;  // applied and skipped
  };
  // The ends of the job's closures. `lost` is by shard number.
  struct Ended {
    const IntervalSet& succeeded;
    const IntervalSet& dead;
    const IntervalSet& resumed;  // those that succeeded in a former job
    const std::vector<IntervalSet>& lost;
  };
  enum class Verdict {
    kExact,   // each shard holds each update that touches it exactly once
    kWithin,  // there is no difference, but updates were lost and counted, or too little is known
              // of the former job's files
    kDifferent,  // some shard holds more updates or fewer
  };
  struct Finding {
    Verdict verdict = Verdict::kExact;
    std::string difference;  // kDifferent: a sentence with the first such shard, the expected
                             // number and the number found
  };
  Finding Compare(const plan::Plan& plan, const Ended& ended,
                  const std::vector<Shard>& shards) const;

  // For the journal.
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

  std::map<std::uint32_t, std::uint64_t>
      touched_less_;  // by shard: of the counted closures, updates that do not touch it
  bool unreported_ = false;
  std::optional<Before> before_;
};

}  // namespace evergrad::coordinator

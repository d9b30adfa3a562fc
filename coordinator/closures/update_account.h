// How many updates each shard of a job must hold when the job ends, and whether it does (LEDGER
// line 38). Pure.
//
// A shard's updates are those that are in its values and those that were skipped. The plan says how
// many there must be in a dense shard, because every update of a closure touches it; for a slot of
// tables only the data say which updates touch it, and the workers report that with each Done. The
// bounds are closed where nothing was lost and nothing is unknown: then the shard holds each update
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
  // Shards that fewer updates of a closure touch than the closure has, and how many; every other
  // shard is touched by all of them.
  using TouchedLess = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

  // InvalidArgument unless shards rise, are below `shards`, and each number is below the closure's
  // updates.
  static absl::Status Check(const TouchedLess& less, std::uint32_t shards, std::uint32_t updates);

  // A closure's success was counted, for the first time; the caller has seen Check. nullopt: its
  // worker did not report (an older build).
  void Count(std::uint32_t updates, const std::optional<TouchedLess>& less);

  // What the shards held when this job took them over from a former one (LEDGER line 28).
  struct Before {
    std::optional<std::vector<std::uint64_t>>
        updates;         // by shard; nullopt: the files cannot be seen from here
    bool whole = false;  // they held the closures that count as succeeded from the beginning, and
                         // nothing else
    bool another_plan = false;  // what they held was not numbered by this job's plan
  };
  void TakeOver(Before before) { before_ = std::move(before); }

  // One shard at the end.
  struct Shard {
    std::uint32_t shard = 0;
    std::string name;           // for people: "dense/kernel rows 0-127", "slot 3"
    bool by_plan = true;        // every update of every closure touches it
    std::uint64_t updates = 0;  // applied and skipped
  };
  // How the job's closures ended. `lost`: by shard number.
  struct Ended {
    const IntervalSet& succeeded;
    const IntervalSet& dead;
    const IntervalSet& resumed;  // succeeded in a former job
    const std::vector<IntervalSet>& lost;
  };
  enum class Verdict {
    kExact,      // each update of every closure is in each shard that it touches exactly once
    kWithin,     // no difference, but something was lost and counted, or the former job's files are
                 // not known well enough
    kDifferent,  // some shard holds more or fewer
  };
  struct Finding {
    Verdict verdict = Verdict::kExact;
    std::string difference;  // kDifferent: one sentence that names the first such shard, what was
                             // expected and what was found
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

// The checks at the end of a walk. Every update must have been applied exactly once [I7], the cuts
// after an early end must be whole [20a], and the counts of updates that the coordinator compares
// at the end of a job must agree [38, I11]. (Numbers in brackets are lines of LEDGER.md, and I7 is
// an invariant there.)
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/closures/update_account.h"
#include "tests/simulation/invariant_checker.h"

namespace evergrad::simulation {

class EndChecks {
 public:
  // Both referenced objects must outlive this object.
  EndChecks(WalkContext& walk, InvariantChecker& checker) : walk_(walk), checker_(checker) {}

  // Records the report of updates in a worker's Done of closure c. It is called for the Done that
  // counts [38].
  void OnReport(std::uint64_t c, const coordinator::UpdateAccount::TouchedLess& less) {
    touched_less_[c] = less;
  }
  // Called when the metrics of closure c are counted.
  void OnMetricsCounted(std::uint64_t c) { ++metrics_counted_[c]; }
  // Called when the job begins from these files. `states` has the state of each file, by shard.
  void ResumeFrom(const std::vector<Snapshot>& snapshots,
                  const std::vector<const HeldState*>& states);
  // `succeeded` has the closures that have succeeded according to the files from which the job
  // resumes.
  void BeginResumed(const IntervalSet& succeeded);

  // Checks a job that ran to the end of its plan. `held` has the states of the owners, by shard.
  void CheckEnd(const DurableState& state, const std::vector<const HeldState*>& held);
  // Checks a file that a resume after an early end would find [28]. It must be a whole cut, and may
  // refuse only closures that the user cancelled or the job lost.
  void CheckLastCut(const DurableState& state, std::uint32_t p, const HeldState& cut);

 private:
  void CheckExactlyOnce(const DurableState& state, std::uint32_t p, const HeldState& held);
  void CompareUpdates(const DurableState& state, const std::vector<const HeldState*>& held);
  // [38] Computes the counts of updates at the end of a job, from the reports that count.
  coordinator::UpdateAccount AccountOf(const DurableState& state);

  WalkContext& walk_;
  InvariantChecker& checker_;
  std::array<int, kClosures> metrics_counted_{};
  // for each closure, from the last report that counted
  std::array<coordinator::UpdateAccount::TouchedLess, kClosures> touched_less_{};
  std::optional<coordinator::UpdateAccount::Before> taken_over_;
  IntervalSet resumed_;
};

}  // namespace evergrad::simulation

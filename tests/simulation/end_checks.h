// The checks at the end of a walk: exactly once [I7], whole cuts after an early end [20a], and the
// account of updates that the coordinator compares at the end of a job [38, I11].
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
  // Both outlive this object.
  EndChecks(WalkContext& walk, InvariantChecker& checker) : walk_(walk), checker_(checker) {}

  // The report of a worker in the Done that counts [38].
  void OnReport(std::uint64_t c, const coordinator::UpdateAccount::TouchedLess& less) {
    touched_less_[c] = less;
  }
  // The metrics of a closure count.
  void OnMetricsCounted(std::uint64_t c) { ++metrics_counted_[c]; }
  // The job begins with these files and states, one for each shard.
  void ResumeFrom(const std::vector<Snapshot>& snapshots,
                  const std::vector<const HeldState*>& states);
  // The closures that have succeeded in the files from which the job resumes.
  void BeginResumed(const IntervalSet& succeeded);

  // Checks a job that ran to the end of its plan. `held` are the states of the owners, by shard.
  void CheckEnd(const DurableState& state, const std::vector<const HeldState*>& held);
  // Checks a file that a resume after an early end would find [28]. It is a whole cut, and refuses
  // only closures that the user cancelled or the job lost.
  void CheckLastCut(const DurableState& state, std::uint32_t p, const HeldState& cut);

 private:
  void CheckExactlyOnce(const DurableState& state, std::uint32_t p, const HeldState& held);
  void CompareUpdates(const DurableState& state, const std::vector<const HeldState*>& held);
  // [38] Returns the account at the end of a job, from the reports that were counted.
  coordinator::UpdateAccount AccountOf(const DurableState& state);

  WalkContext& walk_;
  InvariantChecker& checker_;
  std::array<int, kClosures> metrics_counted_{};
  std::array<coordinator::UpdateAccount::TouchedLess, kClosures> touched_less_{};  // last counted
  std::optional<coordinator::UpdateAccount::Before> taken_over_;
  IntervalSet resumed_;
};

}  // namespace evergrad::simulation

// Counts a job's closures and training attempts over all lives of the coordinator, for the job's
// status, its result and the journal. The closure book counts the grants and repairs of the present
// life; the journal has the numbers of former lives.
//
// Not thread-safe: only the control executor calls it. No I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "common/base/ids.h"
#include "coordinator/jobs/closure_source.h"
#include "coordinator/jobs/job_host.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::v1 {
class JobCounters;
class JobSnapshot;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

struct ClosureCounts {
  std::uint64_t failed = 0, cancelled = 0, attempts = 0;
  std::uint64_t rerun = 0, updates_redone = 0;  // Work repeated after servers were lost.
  std::uint64_t lost = 0, updates_lost = 0;     // Work lost with servers and not repeated.
};

class ClosureTotals : private JobPart {
 public:
  explicit ClosureTotals(const JobPart& part) : JobPart(part) {}

  // --- attempts of training
  void OnGranted(Attempt attempt) {
    ++attempts_;
    high_ = attempt;
  }
  // Called when a worker that still holds `attempt` registers. If a former life granted the attempt
  // after its last commit, the attempt is counted now. A repeated call changes nothing.
  void OnAdopted(ClosureId closure, Attempt attempt);

  // --- ends
  void OnRepaired(std::uint64_t updates) { updates_redone_ += updates; }
  // Counts lost updates (LEDGER line 20b). `first` is true if no update of the closure was lost
  // before. Returns the number of closures that have lost updates.
  std::uint64_t OnLost(bool first, std::uint64_t updates) {
    updates_lost_ += updates;
    return closures_lost_ += first ? 1 : 0;
  }
  // Sets the number of closures whose failure ends the job.
  void SetFailed(std::uint64_t failed) { failed_ = failed; }
  // Called at the end of the job, before the book is deleted: copies the book's numbers. If the
  // source counts its closures itself, `counted` has the source's numbers.
  void Close(const std::optional<ClosureSource::Ends>& counted);

  // `succeeded` is the number of closures that succeeded. The number of cancelled closures is known
  // once the job has ended.
  ClosureCounts Counts(std::uint64_t succeeded) const;
  void FillStatus(bool ended, std::uint64_t succeeded, v1::JobStatus* status) const;

  // --- the journal
  void Fill(v1::JobSnapshot* snapshot) const;
  void FillCounters(v1::JobCounters* counters) const;
  void Read(const v1::JobSnapshot& snapshot);
  void ReadCounters(const v1::JobCounters& counters);

 private:
  std::uint64_t GrantedBelow() const;  // All granted closures are below this number.
  std::uint64_t Reruns() const;

  std::uint64_t attempts_ = 0;
  Attempt high_;               // The highest attempt that is counted in attempts_.
  Attempt known_;              // The value of high_ when this life began.
  std::set<Attempt> adopted_;  // The attempts above known_ that OnAdopted has counted.
  std::uint64_t granted_before_ = 0, repairs_before_ = 0;  // Numbers of former lives.
  std::uint64_t scheduled_ = 0, failed_ = 0, reruns_ = 0;  // reruns_ is used when there is no book.
  std::uint64_t updates_redone_ = 0, closures_lost_ = 0, updates_lost_ = 0;
};

}  // namespace evergrad::coordinator

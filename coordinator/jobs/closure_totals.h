// The numbers of a job's closures and training attempts over all lives of the coordinator, as the
// job's status, its result and the journal have them. The closure book of the present life counts
// its own grants and repairs; the journal has those of former lives.
//
// Not thread-safe: the control executor's. No I/O.
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
  std::uint64_t rerun = 0, updates_redone = 0;  // After losses of servers.
  std::uint64_t lost = 0, updates_lost = 0;     // [20b] With servers, and not to be run again.
};

class ClosureTotals : private JobPart {
 public:
  explicit ClosureTotals(const JobPart& part) : JobPart(part) {}

  // --- attempts of training
  void OnGranted(Attempt attempt) {
    ++attempts_;
    high_ = attempt;
  }
  // A worker still holds `attempt`. If a former life granted it after its last commit, it is
  // counted now; a repeat changes nothing.
  void OnAdopted(ClosureId closure, Attempt attempt);

  // --- ends
  void OnRepaired(std::uint64_t updates) { updates_redone_ += updates; }
  // [20b] `first`: nothing of the closure was lost before. Returns the number of such closures.
  std::uint64_t OnLost(bool first, std::uint64_t updates) {
    updates_lost_ += updates;
    return closures_lost_ += first ? 1 : 0;
  }
  // The number of closures whose failure ends the job.
  void SetFailed(std::uint64_t failed) { failed_ = failed; }
  // The job ends: the book's numbers are kept. `counted`: the numbers of a source that counts its
  // closures itself.
  void Close(const std::optional<ClosureSource::Ends>& counted);

  // `succeeded`: closures that have. Cancelled closures are known once the job has ended.
  ClosureCounts Counts(std::uint64_t succeeded) const;
  void FillStatus(bool ended, std::uint64_t succeeded, v1::JobStatus* status) const;

  // --- the journal
  void Fill(v1::JobSnapshot* snapshot) const;
  void FillCounters(v1::JobCounters* counters) const;
  void Read(const v1::JobSnapshot& snapshot);
  void ReadCounters(const v1::JobCounters& counters);

 private:
  std::uint64_t GrantedBelow() const;  // No closure from it on was granted for the first time.
  std::uint64_t Reruns() const;

  std::uint64_t attempts_ = 0;
  Attempt high_;               // The highest that is counted in attempts_,
  Attempt known_;              // the same when this life began,
  std::set<Attempt> adopted_;  // and those above it that were counted since.
  std::uint64_t granted_before_ = 0, repairs_before_ = 0;  // Of former lives.
  std::uint64_t scheduled_ = 0, failed_ = 0, reruns_ = 0;  // reruns_: without a book.
  std::uint64_t updates_redone_ = 0, closures_lost_ = 0, updates_lost_ = 0;
};

}  // namespace evergrad::coordinator

// The jobs that the coordinator knows: all jobs in order of submission, the queued jobs, and the
// running jobs.
//
//   Add -> queued -> TakeNext -> running -> RemoveEnded -> (still known) -> Forget
//
// Not thread-safe: the control executor owns it. The table calls no method that changes a job.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/jobs/job.h"

namespace evergrad::coordinator {

class JobTable {
 public:
  // At most `running_max` jobs run at the same time, not counting restored jobs.
  explicit JobTable(std::size_t running_max) : running_max_(running_max) {}

  // --- all jobs
  const std::map<JobUid, std::unique_ptr<Job>>& all() const { return jobs_; }
  const std::vector<JobUid>& by_submission() const { return order_; }
  std::size_t size() const { return jobs_.size(); }
  bool Contains(JobUid uid) const { return jobs_.contains(uid); }
  Job* Get(JobUid uid) const;  // null if unknown
  // Returns the job of this uid, or else the newest job of this name ("" for the newest of all), or
  // null.
  Job* Find(absl::string_view name_or_uid) const;
  const Job* FindLiving(absl::string_view name) const;  // the job of this name that has not ended
  bool HasLiving() const;

  // Adds a submitted job at the end of the queue.
  Job* Add(std::unique_ptr<Job> job);
  void TakeBack(JobUid uid);  // removes the job that was added last, as if it had not been added
  // Adds a job of the journal. The jobs are added in the order of submission. Returns true if the
  // job counts as running.
  bool Restore(std::unique_ptr<Job> job);
  // Returns the ended jobs other than the `kept_max` that ended last, in the order of their ends.
  std::vector<JobUid> EndedBeyond(std::size_t kept_max) const;
  void Forget(JobUid uid);

  // --- the queue
  std::size_t queued() const { return queue_.size(); }
  std::optional<std::size_t> PlaceInQueue(JobUid uid) const;  // counted from 0
  void RemoveFromQueue(JobUid uid) { std::erase(queue_, uid); }
  // Returns true if a queued job must wait for the end of a running job.
  bool full() const { return running_.size() >= running_max_; }
  // Returns the next job to begin, which counts as running from now on. Null if no job waits, or if
  // running_max jobs run. Jobs that were cancelled in the queue are skipped.
  Job* TakeNext();

  // --- running jobs. A job that has ended is not a running job, even before RemoveEnded.
  // Running(uid) returns null if the job does not run, or if `uid` is nullopt.
  Job* Running(std::optional<JobUid> uid) const;
  std::vector<Job*> Running() const;                       // in the order in which they began
  std::size_t running() const { return running_.size(); }  // includes ended jobs until RemoveEnded
  // Returns the jobs that ran and have ended since the previous call.
  std::vector<JobUid> RemoveEnded();

 private:
  const std::size_t running_max_;
  std::map<JobUid, std::unique_ptr<Job>> jobs_;
  std::vector<JobUid> order_;  // by submission
  std::deque<JobUid> queue_;
  std::vector<JobUid> running_;  // in the order in which they began
};

}  // namespace evergrad::coordinator

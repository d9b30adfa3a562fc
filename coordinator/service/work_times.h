// Histograms of each running job: the duration of closures, and the time for which workers wait for
// a grant.
//
//   OnGrant ─▶ OnMessageOf, OnDone ─▶ the worker holds nothing: its wait begins ─▶ OnGrant
//
// The times are measured at the coordinator, from message to message, so they include the network
// latency. The control executor calls every method; scrapes read the histograms on another thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "common/time/clock.h"

namespace evergrad::coordinator {

class WorkTimes {
 public:
  explicit WorkTimes(metrics::Registry& registry);

  // Records that a grant is sent. The grant ends the wait of the worker, which is 0 if the worker
  // still holds other work. The first grant of a worker in a job has no wait, because the worker
  // may have had nothing to do before the job came. The duration of the closure is measured only if
  // `training` is true.
  void OnGrant(TaskId worker, JobUid job, const std::string& job_name, Attempt attempt,
               bool training, MonoTime now);
  // Records a Done of the worker. A closure that was granted ahead began when the worker ended its
  // previous closure.
  void OnDone(TaskId worker, JobUid job, Attempt attempt, MonoTime now);
  // Records that the job has processed a message of the worker. If `holds` is false, the worker has
  // no work left, and its wait begins.
  void OnMessageOf(TaskId worker, JobUid job, bool holds, MonoTime now);
  void ForgetWorker(TaskId worker) { workers_.erase(worker); }
  void EndJob(JobUid job);  // removes the histograms of the job

 private:
  struct Worker {
    JobUid job;
    std::map<Attempt, MonoTime> training;  // held training attempts, with the times of the grants
    std::optional<MonoTime> free_since;    // has a value while the worker holds nothing
    MonoTime last_done{0};
  };
  struct OfJob {
    explicit OfJob(metrics::Labels of);
    metrics::Labels labels;
    metrics::Histogram closure, wait;
  };
  struct Shared {
    Mutex mu;
    std::map<JobUid, OfJob> jobs ABSL_GUARDED_BY(mu);
  };
  Worker* Find(TaskId worker, JobUid job);
  void AddFamily(metrics::Registry& registry, const char* name, const char* help,
                 metrics::Histogram OfJob::*histogram) const;

  std::map<TaskId, Worker> workers_;  // workers that have been granted work
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();  // shared with the registry
};

}  // namespace evergrad::coordinator

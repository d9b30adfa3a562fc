#include "coordinator/service/control_metrics.h"

#include <cmath>
#include <utility>

namespace evergrad::coordinator {

JobGauges::JobGauges(metrics::Registry& registry) {
  const std::pair<const char*, const char*> of_jobs[] = {
      {"evergrad_coordinator_job_share", "spec.resources.share of each running job"},
      {"evergrad_coordinator_job_workers", "workers that serve each running job"},
      {"evergrad_coordinator_job_worker_seconds",
       "worker-seconds that each running job has received since the coordinator started"},
      {"evergrad_coordinator_job_steps_done", "steps that each running job has done"},
      {"evergrad_coordinator_job_closures_open",
       "granted closures of each running job that have not ended"},
      {"evergrad_coordinator_job_checkpoint_age_seconds",
       "seconds since the newest checkpoint of each running job with checkpoints, or since the job "
       "began if it has none yet"}};
  static_assert(std::size(of_jobs) == std::tuple_size_v<decltype(One::values)>);
  for (std::size_t i = 0; i < std::size(of_jobs); ++i) {
    registry.AddCallbackGauges(of_jobs[i].first, of_jobs[i].second, [shared = shared_, i] {
      metrics::Registry::Samples samples;
      MutexLock lock(&shared->mu);
      for (const One& one : shared->jobs) {
        if (!std::isnan(one.values[i])) samples.emplace_back(one.labels, one.values[i]);
      }
      return samples;
    });
  }
}

void JobGauges::Set(std::vector<One> jobs) {
  MutexLock lock(&shared_->mu);
  shared_->jobs = std::move(jobs);
}

}  // namespace evergrad::coordinator

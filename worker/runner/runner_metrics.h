// The runner's own metrics, registered once for the life of the process. Counters and gauges may
// be changed from any thread. The registry outlives this object.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/ids.h"
#include "common/metrics/metrics.h"
#include "worker/runner/exchange.h"

namespace evergrad::worker {

class RunnerMetrics {
 public:
  RunnerMetrics(metrics::Registry* registry, std::uint64_t step_records_max,
                std::uint64_t data_bytes_max);

  // `evergrad_worker_serves_job` shows this job from now on; an empty name means no job.
  void ShowServedJob(const std::string& name, JobUid uid);

  metrics::Limit attempts, step_records, data;
  metrics::Counter &steps, &examples, &done, &dropped, &failed, &skips;
  metrics::Gauge& loss;
  // These histograms have no label of the job, because a worker serves one job at a time.
  // `evergrad_worker_serves_job` names this job.
  metrics::Histogram &push_seconds, &pull_seconds, &step_seconds, &batch_wait_seconds;
  Exchange::Counters exchange;

 private:
  struct ServedJob;
  const std::shared_ptr<ServedJob> served_job_;  // shared with the registry, which outlives this
};

}  // namespace evergrad::worker

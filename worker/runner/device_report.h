// Reports the use of the worker's device in heartbeats, metrics and two warnings. A worker on a CPU
// reports nothing; its metrics then have names and no samples.
//
// The methods are called on the control executor. The scraping thread reads the metrics, even after
// this object has been destroyed.
#pragma once

#include <memory>

#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "evergrad/v1/session.pb.h"
#include "worker/runner/compute_job.h"

namespace evergrad::worker {

class DeviceReport {
 public:
  DeviceReport(std::shared_ptr<ComputeBackend> backend, metrics::Registry* registry);

  // Resets the loss scale and the number of overflows for a new job.
  void BeginJob();
  // Adds a finished training step.
  void AddStep(const ComputeJob::Step& step);
  // Adds a time during which the device had no step to compute.
  void AddWait(double seconds);
  void Fill(v1::WorkerProgress* progress) const;
  // Logs each of two warnings at most once: that page-locked memory is exhausted, and that steps
  // have more shapes than the graph limit.
  void WarnOnce(log::Logger* logger, const log::Context& context);

 private:
  struct Counts;

  const std::shared_ptr<ComputeBackend> backend_;  // shared with the jobs
  const std::shared_ptr<Counts> counts_;           // shared with the registry, which outlives this
  metrics::Gauge& loss_scale_;
  metrics::Counter& overflows_;
  bool warned_of_staging_ = false, warned_of_graphs_ = false;
};

}  // namespace evergrad::worker

// Reports the use of the worker's device in heartbeats, metrics and two warnings. Without a device
// (on the CPU) it reports nothing; the metrics then have names and no samples.
//
// The methods belong to the control executor. The metrics are read from the scraping thread, also
// after this object has ended.
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

  // A new job has no loss scale and no overflows yet.
  void BeginJob();
  // A training step has ended.
  void AddStep(const ComputeJob::Step& step);
  // The device had no step to compute for this time.
  void AddWait(double seconds);
  void Fill(v1::WorkerProgress* progress) const;
  // Logs, once each: out of page-locked memory; steps have more shapes than there are graphs.
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

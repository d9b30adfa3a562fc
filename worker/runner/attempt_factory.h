// Makes the run of a granted attempt: which class it is depends on the kind of work and the type of
// the job. Control executor.
#pragma once

#include "worker/runner/batch_streams.h"
#include "worker/runner/device_report.h"
#include "worker/runner/export_run.h"
#include "worker/runner/update_run.h"
#include "worker/sdk/sdk.h"

namespace evergrad::worker {

class AttemptFactory {
 public:
  // All outlive the factory and its runs.
  struct Environment {
    AttemptRun::Environment run;  // but for job, and for the job's part of the exchange
    UpdateRun::Measures measures;
    BatchStreams* streams = nullptr;
    DeviceReport* device = nullptr;
    const sdk::Registry* functions = nullptr;  // may be null: none
    std::function<bool(v1::TaskMessage)> send;
    std::string host;  // where exported files lie
    bool skip_not_finite = false;
  };
  explicit AttemptFactory(Environment environment) : env_(std::move(environment)) {}

  // `job` can do such work (JobContext::Check), and outlives the run. `registration`: of this
  // worker in the session. For training and evaluations that read data, the stream of `work` is
  // open.
  std::shared_ptr<AttemptRun> Make(const Work& work, JobContext* job,
                                   const v1::Stamp& registration);

 private:
  const Environment env_;
  WarningInterval disk_full_;
};

}  // namespace evergrad::worker

// Creates the run of a granted attempt. The class of the run depends on the kind of work and on the
// type of the job. Control executor.
#pragma once

#include "worker/runner/batch_streams.h"
#include "worker/runner/device_report.h"
#include "worker/runner/export_run.h"
#include "worker/runner/update_run.h"
#include "worker/sdk/sdk.h"

namespace evergrad::worker {

class AttemptFactory {
 public:
  // All objects outlive the factory and its runs.
  struct Environment {
    AttemptRun::Environment run;  // `job` and the job's part of the exchange are filled in by Make
    UpdateRun::Measures measures;
    BatchStreams* streams = nullptr;
    DeviceReport* device = nullptr;
    const sdk::Registry* functions = nullptr;  // null if no function is registered
    std::function<bool(v1::TaskMessage)> send;
    std::string host;  // folder of exported files
    bool skip_not_finite = false;
  };
  explicit AttemptFactory(Environment environment) : env_(std::move(environment)) {}

  // `job` must be able to do such work (JobContext::Check) and outlives the run. `registration` is
  // this worker's registration in the session. If the work is training or evaluation and reads
  // data, its stream must be open.
  std::shared_ptr<AttemptRun> Make(const Work& work, JobContext* job,
                                   const v1::Stamp& registration);

 private:
  const Environment env_;
  WarningInterval disk_full_;
};

}  // namespace evergrad::worker

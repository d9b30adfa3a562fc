// Creates the run of a granted attempt. An export is the same for all jobs; the kind of the job
// creates all other runs. Used on the control executor.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "worker/runner/export_run.h"
#include "worker/runner/job_kind.h"

namespace evergrad::worker {

class AttemptFactory {
 public:
  // All objects outlive the factory and its runs.
  struct Environment {
    JobKind::Parts parts;  // `run.job` and the job's part of the exchange are filled in by Make
    std::function<bool(v1::TaskMessage)> send;
    std::string host;  // name of this host, reported with exported files
  };
  explicit AttemptFactory(Environment environment) : env_(std::move(environment)) {}

  // Creates the run. JobContext::Check must have accepted the work; `job` outlives the run.
  // `registration` is this worker's registration in the session. If the work is training or
  // evaluation and reads data, its stream must be open.
  std::shared_ptr<AttemptRun> Make(const Work& work, JobContext* job,
                                   const v1::Stamp& registration);

 private:
  const Environment env_;
  WarningInterval disk_full_;
};

}  // namespace evergrad::worker

// The rules of a type of jobs (spec.type) on a worker. Every worker has the types training and
// functions; the main program may add others (Runner::Environment::more_job_kinds). Kinds have no
// state, live as long as the process, and are used on the control executor.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/runner/batch_streams.h"
#include "worker/runner/device_report.h"
#include "worker/runner/update_run.h"
#include "worker/sdk/sdk.h"

namespace evergrad::worker {

class JobKind {
 public:
  // The objects that runs need. All objects outlive the runs.
  struct Parts {
    AttemptRun::Environment run;
    UpdateRun::Measures measures;
    BatchStreams* streams = nullptr;
    DeviceReport* device = nullptr;
    const sdk::Registry* functions = nullptr;  // null if no function is registered
    bool skip_not_finite = false;
  };

  virtual ~JobKind() = default;
  virtual absl::string_view type() const = 0;  // the value of spec.type

  // Returns whether an attempt waits until the job's input is open (InputOpener). A job without a
  // model opens nothing, but passes the failpoint of the opening.
  virtual bool opens_input() const { return true; }
  // Returns an error for a kind of work that such jobs do not have.
  virtual absl::Status Check(WorkKind) const { return absl::OkStatus(); }
  // Creates the run of a granted attempt. The work may be of any kind except an export. The work
  // has passed JobContext::Check. If the job reads data and the work is training or evaluation, the
  // stream of the work is open.
  virtual std::shared_ptr<AttemptRun> MakeRun(const Parts& parts, const Work& work) const = 0;
};

// Returns the kind of jobs with this `type`. The function searches the kinds of every worker and
// the kinds in `more`. Returns nullptr if there is no such kind.
const JobKind* FindJobKind(absl::string_view type, const std::vector<const JobKind*>& more);

}  // namespace evergrad::worker

// Takes the reports of a job's workers about their attempts: Dones, failures, and attempts that are
// given back. Each report goes to the part that has granted the attempt.
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from the host.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "coordinator/jobs/closure_source.h"
#include "coordinator/jobs/death_watch.h"
#include "coordinator/jobs/done_turn.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/job_phases.h"
#include "coordinator/jobs/reading_work.h"
#include "coordinator/jobs/sealed_export.h"
#include "coordinator/jobs/training_work.h"
#include "coordinator/jobs/worker_roster.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class WorkerReports : private JobPart {
 public:
  struct Parts {
    const JobPhases* phases;
    WorkerRoster* roster;
    DeathWatch* deaths;
    DoneTurn* turn;
    TrainingWork* training;
    ReadingWork* reading;
    SealedExport* sealed_export;
    const std::unique_ptr<ClosureSource>* source;  // The source is made later.
  };
  struct Hooks {  // Called when a closure that only reads has ended.
    std::function<void(const v1::DescribeResult&)> described;
    std::function<void()> evaluated;  // The last closure of the evaluation has ended.
    std::function<void(const v1::ExportResult&, const std::string& worker)> exported;
  };
  // All of `parts` outlive this object.
  WorkerReports(const JobPart& part, const Parts& parts, Hooks hooks)
      : JobPart(part), parts_(parts), hooks_(std::move(hooks)) {}

  // Takes a Done, which is answered at the end of the turn. Returns InvalidArgument and changes
  // nothing if the Done is malformed. A report of a task that is no worker of the job changes
  // nothing.
  absl::Status OnDone(TaskId task, const v1::Done& done);
  void OnFailed(TaskId task, const v1::Failed& failed);
  void OnDropped(TaskId task, const v1::AttemptDropped& dropped);

 private:
  void OnReadingDone(JobWorker& worker, const v1::Done& done);

  const Parts parts_;
  const Hooks hooks_;
};

}  // namespace evergrad::coordinator

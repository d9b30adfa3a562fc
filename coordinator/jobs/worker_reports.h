// The reports of the workers of a job about their attempts: Dones, failures, and attempts that are
// given back. Each report goes to the part that has granted the attempt.
//
// Not thread-safe: the control executor's. No clock and no I/O but through the host.
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
    const std::unique_ptr<ClosureSource>* source;  // Made later.
  };
  struct Hooks {  // A closure that only reads has ended.
    std::function<void(const v1::DescribeResult&)> described;
    std::function<void()> evaluated;  // The last closure of the evaluation has ended.
    std::function<void(const v1::ExportResult&, const std::string& worker)> exported;
  };
  // What `parts` points to outlives this object.
  WorkerReports(const JobPart& part, const Parts& parts, Hooks hooks)
      : JobPart(part), parts_(parts), hooks_(std::move(hooks)) {}

  // InvalidArgument: the Done is malformed, and nothing has changed. It is answered at the end of
  // the turn. A report of a task that is no worker of the job changes nothing.
  absl::Status OnDone(TaskId task, const v1::Done& done);
  void OnFailed(TaskId task, const v1::Failed& failed);
  void OnDropped(TaskId task, const v1::AttemptDropped& dropped);

 private:
  void OnReadingDone(JobWorker& worker, const v1::Done& done);

  const Parts parts_;
  const Hooks hooks_;
};

}  // namespace evergrad::coordinator

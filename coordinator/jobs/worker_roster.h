// Holds the registered workers of a job, decides which of them can be given work, and knows why the
// others cannot.
//
// A worker is usable once it is ready and has sent a message after its Hello. A worker is not
// usable while it leaves, is called back for another job, backs off after deaths, is set aside, or
// cannot take part (unfit_workers.h). A deterministic job uses only one of the usable workers
// (worker_pin.h).
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from the host.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/time/clock.h"
#include "coordinator/jobs/epoch_account.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/job_worker.h"
#include "coordinator/jobs/unfit_workers.h"
#include "coordinator/jobs/worker_pin.h"
#include "evergrad/v1/api.pb.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::v1 {
class JobSnapshot;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

class WorkerRoster : private JobPart {
 public:
  // `epochs` outlives this object.
  WorkerRoster(const JobPart& part, const EpochAccount* epochs);

  JobWorkers& workers() { return workers_; }
  const JobWorkers& workers() const { return workers_; }
  JobWorker* Find(TaskId task);

  // --- workers that come and go.
  // Returns the worker of a Hello. The worker is not in the roster yet.
  JobWorker Make(TaskId task, const std::string& identity, MonoTime backoff_until,
                 const v1::Hello& hello) const;
  // Replaces `former` by `worker`. If both have the same process, `worker` keeps the state of
  // `former`, otherwise only its rate. `counted` is true if the job has counted closures of the
  // former process.
  void Replace(const JobWorker& former, bool counted, JobWorker* worker);
  // Forgets the state of a process that is gone. `counted` is true if the job has counted closures
  // of the process.
  void Forget(const JobWorker& worker, bool counted);
  // Called when a life begins. Any worker may have left a moment ago.
  void BeginLife() { fit_left_ = host_->Now(); }
  // Sets the number of workers that serve other jobs.
  void SetElsewhere(std::uint32_t workers) { elsewhere_ = workers; }
  std::uint32_t elsewhere() const { return elsewhere_; }

  // Takes the progress in a heartbeat of the worker, and truncates its texts.
  void OnProgress(JobWorker* worker, const v1::WorkerProgress& said);

  // --- work
  bool Usable(const JobWorker& worker, MonoTime now) const;
  bool Holds(TaskId task) const;  // Returns whether it holds attempts, or still runs revoked work.
  // Returns the number of workers that hold work, or held some within the last `while_`.
  std::uint32_t Busy(std::chrono::milliseconds while_) const;
  // Returns for how long the worker gets no work because of repeated deaths.
  std::chrono::milliseconds BacksOffFor(TaskId task) const;
  WorkerPin::Choice Pinned();
  // Asks the worker to give back an attempt that it has not begun. If the worker already runs the
  // attempt, it continues.
  void Recall(JobWorker* worker, Attempt attempt, JobWorker::Held* held);
  void RecallAll(JobWorker* worker);
  // Removes the worker's attempts, which the caller has given to others. The worker gets no work
  // while it still computes.
  void TakeAll(JobWorker* worker);
  // Returns the connected workers with work that has not advanced by a step for step_timeout. The
  // closures of such workers would block the window of open closures forever. Most calls return
  // nothing, because the check runs only from time to time. Time does not count while a server is
  // missing, while the worker's pushes wait, or while `window_open`.
  std::vector<TaskId> Stalled(bool window_open);

  // --- workers that cannot take part
  bool IsAside(std::uint64_t process) const { return unfit_.IsAside(process, host_->Now()); }
  const UnfitWorkers::Record* UnfitOf(const JobWorker& worker) const {
    return unfit_.Of(worker.process);  // Null if the worker is not known to be unfit.
  }
  void SetFit(const JobWorker& worker) { unfit_.SetFit(worker.process, host_->Now()); }
  void SetUnreached(const JobWorker& worker, const v1::UnreachedServer& server) {
    unfit_.SetUnreached(worker.process, server);
  }
  // Sets the worker aside, and gives its work to others. Returns false if no connected worker can
  // run the job and the caller must treat the failure as a user error. This is the case before the
  // job is described, and for closures with callers that must learn of the failure
  // (closure_source.h). The result is also false for a repair whose worker lacks the input (LEDGER
  // line 33), if no other worker has returned within server_lost_after. In all other cases the work
  // waits for a worker that can run it.
  bool SetAside(JobWorker& worker, const v1::Failed& failed, bool has_callers);

  // --- texts and views. If no worker can work, returns a text that says what the job waits for;
  // otherwise "".
  std::string WaitingFor() const;
  // A text about workers whose pushes wait for memory, or "".
  std::string WaitingForPauses() const;
  // Adds an event when pushes of a worker begin to wait for memory, and another event when no
  // pushes wait any more. `gone` is a worker that has just been removed, or "".
  void TellPauses(absl::string_view gone = "");
  void ForgetPauses() { pause_said_ = false; }  // If pushes still wait, the wait is reported again.
  // Sets the states of the registered workers in `rows` (by identity), and adds the rows to the
  // status.
  void FillStatus(std::map<std::string, v1::WorkerRow> rows, v1::JobStatus* status) const;

  // --- the journal
  void Fill(v1::JobSnapshot* snapshot) const { pin_.Fill(snapshot); }
  void Read(const v1::JobSnapshot& snapshot) { pin_.Read(snapshot); }

 private:
  void FillRow(const JobWorker& worker, v1::WorkerRow* row) const;
  bool NobodyFits() const;
  std::string WaitingForBackoffs() const;

  const EpochAccount* const epochs_;
  JobWorkers workers_;
  UnfitWorkers unfit_;
  WorkerPin pin_;
  std::uint32_t elsewhere_ = 0;
  // The time at which a worker that could do this job last left, or at which this life began.
  std::optional<MonoTime> fit_left_;
  MonoTime next_stall_check_{0};
  // An event has reported that pushes wait, and no event has reported the end of the wait yet.
  bool pause_said_ = false;
  std::optional<MonoTime> pause_said_at_;
};

}  // namespace evergrad::coordinator

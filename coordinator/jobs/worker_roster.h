// The workers of a job: the registrations that are here, which of them can be given work, and why
// the others cannot.
//
// A worker is usable once it is ready and has said something since its Hello, and unless it leaves,
// serves another job soon, backs off after deaths, was set aside, or cannot take part
// (unfit_workers.h). A deterministic job uses one of the usable workers (worker_pin.h).
//
// Not thread-safe: the control executor's. No clock and no I/O but through the host.
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

  // --- who comes and goes
  // The worker of a Hello. It is not in the roster yet.
  JobWorker Make(TaskId task, const std::string& identity, MonoTime backoff_until,
                 const v1::Hello& hello) const;
  // `worker` takes the place of `former`. The same process keeps its state; of another one nothing
  // is known but the former rate. `counted`: closures of the former one have counted.
  void Replace(const JobWorker& former, bool counted, JobWorker* worker);
  // The process of `worker` is gone: what is known of it is forgotten. `counted` as above.
  void Forget(const JobWorker& worker, bool counted);
  void BeginLife() { fit_left_ = host_->Now(); }  // Any worker may have been here before.
  // The number of workers that serve other jobs.
  void SetElsewhere(std::uint32_t workers) { elsewhere_ = workers; }
  std::uint32_t elsewhere() const { return elsewhere_; }

  // A heartbeat of the worker: its progress replaces the former one, and its texts are bounded.
  void OnProgress(JobWorker* worker, const v1::WorkerProgress& said);

  // --- work
  bool Usable(const JobWorker& worker, MonoTime now) const;
  bool Holds(TaskId task) const;  // Attempts, or a thread that is not back from revoked work.
  // Workers that hold work, or had some within the last `while_`.
  std::uint32_t Busy(std::chrono::milliseconds while_) const;
  // How long it gets no work, because it died again and again.
  std::chrono::milliseconds BacksOffFor(TaskId task) const;
  WorkerPin::Choice Pinned();
  // Asks for an attempt that has not begun; a worker that runs it continues.
  void Recall(JobWorker* worker, Attempt attempt, JobWorker::Held* held);
  void RecallAll(JobWorker* worker);
  // The caller has given its attempts to others. It gets nothing while it still computes.
  void TakeAll(JobWorker* worker);
  // Workers whose session lives while their work has not advanced a step for step_timeout: what
  // they hold would keep the window of open closures shut for ever. Looked at once in a while. Time
  // does not count while a server is missing, the worker's pushes wait, or `window_open`.
  std::vector<TaskId> Stalled(bool window_open);

  // --- workers that cannot take part
  bool IsAside(std::uint64_t process) const { return unfit_.IsAside(process, host_->Now()); }
  const UnfitWorkers::Record* UnfitOf(const JobWorker& worker) const {
    return unfit_.Of(worker.process);  // Null: as far as is known it can take part.
  }
  void SetFit(const JobWorker& worker) { unfit_.SetFit(worker.process, host_->Now()); }
  void SetUnreached(const JobWorker& worker, const v1::UnreachedServer& server) {
    unfit_.SetUnreached(worker.process, server);
  }
  // The worker is set aside, its work goes to others. Returns false if no connected worker can run
  // the job; the caller then treats the failure as a user error. That is so while nobody has
  // described the job, for closures with callers (closure_source.h), who are to be told, and for a
  // repair whose input is gone [33], once a worker that left has had as long as a server has to
  // come back. Everything else waits for a worker that can run it.
  bool SetAside(JobWorker& worker, const v1::Failed& failed, bool has_callers);

  // --- texts and views
  // What the job waits for if no worker can work; "": some worker can.
  std::string WaitingFor() const;
  std::string WaitingForPauses() const;  // The memory that paused workers wait for, or "".
  // Tells when a worker's pushes begin to wait for memory, and when none does any more, not at each
  // moment between. `gone`: the worker that has just been removed.
  void TellPauses(absl::string_view gone = "");
  void ForgetPauses() { pause_said_ = false; }  // A worker that still waits will say so.
  // Adds `rows`, in which the workers that are here have their states. By identity.
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
  // When the last worker that could do this job went, or this life began.
  std::optional<MonoTime> fit_left_;
  MonoTime next_stall_check_{0};
  bool pause_said_ = false;  // And not yet that it is over.
  std::optional<MonoTime> pause_said_at_;
};

}  // namespace evergrad::coordinator

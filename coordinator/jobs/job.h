// One job from submission to its end: QUEUED -> STARTING -> RUNNING -> SUCCEEDED | FAILED |
// CANCELLED.
//
//   describe closure -> plan -> place -> Assign/Assigned -> RUNNING: train … evaluate … train ->
//   evaluate -> export -> every shard reported -> files written -> SUCCEEDED
//   user error, cancel: seal -> report -> files -> FAILED, CANCELLED
//
// Job takes the calls of the control plane and passes each to the part that it concerns
// (job_parts.h). JobLife carries out the effects of the phases. The ClosureBook decides the
// protocol (LEDGER lines 18 to 26): the job commits the records of the book, and then sends the
// messages that follow from them. Not thread-safe: every call comes from the coordinator's control
// executor. Clock and I/O come from JobHost, so the tests and the daemon run the same class.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/base/ids.h"
#include "common/time/clock.h"
#include "coordinator/jobs/job_life.h"
#include "coordinator/jobs/job_parts.h"
#include "coordinator/jobs/job_views.h"
#include "evergrad/v1/api.pb.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class Job {
 public:
  using Identity = JobIdentity;
  Job(JobHost* host, const JobOptions& options, Identity identity);  // `host` outlives the job.
  // Restores a job from the store, before this life of the coordinator has a term. Resume must
  // follow. The errors DataLoss and InvalidArgument name the job.
  static absl::StatusOr<std::unique_ptr<Job>> Restore(JobHost* host, const JobOptions& options,
                                                      JobUid uid, const StoredJob& stored);
  ~Job();

  // --- life
  // Accepts the job: commits it to the store. No message about the job may be sent earlier. Returns
  // false if the store failed.
  bool Keep() { return life_.PersistWhole(); }
  // Moves the job from QUEUED to STARTING. AdmitWorker and AdmitServer may be called before and
  // after.
  void Start() { life_.Start(); }
  // Begins this life of the coordinator (LEDGER line 18) for a restored job that had started.
  // Servers register, then CloseWindow follows, then workers register.
  void Resume(Term term) { life_.Resume(term); }
  void Cancel() { life_.Cancel(); }  // A repeated call, or a call after the end, changes nothing.
  void Tick();                       // Call it every few tens of milliseconds.
  bool ended() const { return parts_.phases.ended(); }
  // The wall time of the end; 0 before.
  std::int64_t ended_ms() const { return parts_.times.ended_ms; }
  bool started() const { return parts_.phases.started(); }
  // Returns whether only the files of the job's end are still to be written.
  bool writing() const { return parts_.phases.In(JobPhase::kWriting); }
  JobState state() const { return parts_.phases.state(); }
  JobUid uid() const { return parts_.id.uid; }
  const std::string& name() const { return parts_.id.spec.name; }
  const std::string& runs_folder() const { return parts_.id.runs_folder; }
  const std::string& request_id() const { return parts_.id.request_id; }
  const std::string& owner() const { return parts_.id.owner; }  // "user/alice"; "" for no owner
  std::uint64_t revision() const { return parts_.news.revision(); }

  // --- tasks. Admit… comes first (it fills the task's Registered and sends nothing to the task),
  // then Registered is sent, then Ready follows.
  void AdmitWorker(TaskId task, const std::string& identity, MonoTime backoff_until,
                   std::optional<TaskId> former, bool former_died, const v1::Hello& hello,
                   v1::Registered* registered);
  // Returns InvalidArgument and changes nothing if a set in the Hello is malformed.
  absl::Status AdmitServer(TaskId task, const std::string& identity, std::optional<TaskId> former,
                           bool former_died, const v1::Hello& hello, v1::Registered* registered);
  void Ready(TaskId task);
  // Call it between Admit and Ready for a worker that has sent nothing since its Hello. Until the
  // call of Speaks the worker gets no work, and its end has no effect on this job.
  void Withhold(TaskId task) { parts_.worker_admission.Withhold(task); }
  void Speaks(TaskId task);
  // Returns the time for which the worker gets no work because it died again and again.
  std::chrono::milliseconds BacksOffFor(TaskId worker) const {
    return parts_.roster.BacksOffFor(worker);
  }
  void Warn(const std::string& text) {  // Adds a warning, unless the job has ended.
    if (active()) life_.Event("warning", text);
  }
  void Tell(const std::string& text) {  // Adds an event of kind state, unless the job has ended.
    if (active()) life_.Event("state", text);
  }
  void OnWorkerGone(TaskId task, absl::string_view reason, bool leaving);
  // Notes that the task has announced its end (v1::Leaving). With `drains`, a server stays until
  // its shards have been moved, and then gets a Drained. A repeated call changes nothing.
  void OnLeaving(TaskId task, absl::string_view reason, bool drains);
  // Takes the worker back for another job. The worker gets no more work of this job, and gives back
  // the work that it has not begun.
  void CallBack(TaskId task);
  // Returns whether the worker holds work of this job, or its thread still runs revoked work.
  bool Holds(TaskId task) const { return parts_.roster.Holds(task); }
  void ReleaseWorker(TaskId task);  // Removes the worker, which then serves another job.
  // useful_workers() is the number of workers that the job can use now. busy_workers() is the
  // number of its workers that have had work within the last `while_`.
  std::uint32_t useful_workers() const;
  // The number of workers that the job could use if they were there. It is at least 1 while the job
  // is neither ended nor about to end early, except for a functions job without open closures.
  std::uint64_t wanted_workers() const;
  std::uint32_t busy_workers(std::chrono::milliseconds while_) const {
    return parts_.roster.Busy(while_);
  }
  // Returns the functions of the closures that a functions job has open. Only a worker that has one
  // of them is useful to the job. Returns nullopt if every worker is useful.
  std::optional<std::set<std::string>> wanted_functions() const {
    return parts_.source->WantedFunctions(parts_.roster.workers());
  }
  // Returns whether the process has reported that it cannot work for the job, and gets no further
  // try yet.
  bool IsUnfit(std::uint64_t process) const { return parts_.roster.IsAside(process); }
  // Sets the number of workers that serve other jobs. The texts about waits use the number.
  void SetWorkersElsewhere(std::uint32_t workers) { parts_.roster.SetElsewhere(workers); }
  double share() const { return parts_.id.spec.resources.share; }
  bool keeps_its_worker() const { return parts_.id.spec.strategy.deterministic; }
  void OnServerAway(TaskId task, absl::string_view reason) {  // Called when the server has
                                                              // disconnected. The job then waits
                                                              // for it.
    parts_.server_admission.OnAway(task, reason);
  }
  void OnServerLost(TaskId task, absl::string_view identity, absl::string_view reason,
                    bool leaving);
  // Called when a server gets no new shards from now on, or gets shards again. Another task is
  // ignored.
  void OnServerCordon(TaskId task, bool on);
  // Begins a new life, because a task knew a higher term (LEDGER line 18). Every task registers
  // again, and grants wait until CloseWindow.
  void BeginAnew(Term term) { life_.BeginAnew(term); }
  void CloseWindow() { life_.CloseWindow(); }

  // Processes a message of `task` about this job. Returns InvalidArgument and changes nothing if
  // the message is malformed. A Done is neither committed nor answered by this call. While
  // turn_open() is true, the caller must soon call EndTurn.
  absl::Status OnMessage(TaskId task, const v1::TaskMessage& message);
  // EndTurn commits the changes of all Dones since the previous turn in one commit, answers the
  // Dones, and then grants the closures that can be granted.
  bool turn_open() const { return parts_.turn.open(); }
  void EndTurn() { life_.EndTurn(); }
  // The first half of EndTurn. Call it before any message is sent that may follow from the Dones.
  // Returns false if the store failed.
  bool CommitTurn() { return parts_.turn.Commit(); }

  // --- closures as an API. Returns FailedPrecondition if the type of the job is not functions.
  absl::StatusOr<FunctionCalls*> function_calls();

  // --- questions
  // Does not set the reason for which the job is queued, nor the number of its workers. The control
  // plane sets these two fields.
  void FillStatus(v1::JobStatus* status, std::uint64_t events_after) const {
    FillJobStatus(parts_, events_after, status);
  }
  // If the job runs, asks every owner of a shard for its contents. If the job has ended, answers
  // with the final report. `done` may be called before QueryShards returns.
  using ShardAnswer = ShardQueries::Answer;
  void QueryShards(bool digests, std::chrono::milliseconds timeout, ShardQueries::Done done) {
    parts_.report.Ask(digests, timeout, std::move(done));
  }
  const v1::Plan* plan_message() const { return parts_.plan ? &parts_.plan.message() : nullptr; }
  std::string WaitingFor() const { return parts_.waits.Text(); }
  std::uint64_t steps_done() const { return parts_.epochs.steps_done(); }
  std::uint64_t open_closures() const { return parts_.book ? parts_.book->InFlight() : 0; }
  // Returns the number of ended closures that follow the oldest closure that has not ended. The
  // number is at most closures_behind_max, because no new closure is granted beyond this limit.
  std::uint64_t closures_behind() const { return parts_.epochs.waiting(); }
  // Returns the age of the newest checkpoint, or of the job if it has no checkpoint yet. Returns
  // nullopt if the job makes no checkpoints.
  std::optional<double> checkpoint_age_seconds() const { return CheckpointAgeSeconds(parts_); }
  // Returns how many times the limit closures_behind_max has begun to prevent new grants since the
  // previous call of this function.
  std::uint64_t TakeWindowRefusals() { return parts_.source->TakeWindowRefusals(); }
  bool TakeEnd() { return ended() && !std::exchange(end_taken_, true); }  // Returns true once.

 private:
  struct Restored {};  // Selects the constructor for a job from the store.
  Job(JobHost* host, const JobOptions& options, Identity identity, Restored);

  bool active() const { return parts_.phases.active(); }
  void OnHeartbeat(TaskId task, const v1::Heartbeat& heartbeat);
  void OnClosed(TaskId task, const v1::Closed& closed);

  JobLife life_{&parts_};
  JobParts parts_;
  MonoTime next_close_{0};
  bool end_taken_ = false;
};

}  // namespace evergrad::coordinator

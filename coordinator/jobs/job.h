// One job from submission to its end: QUEUED -> STARTING -> RUNNING -> SUCCEEDED | FAILED |
// CANCELLED.
//
//   describe closure -> plan -> place -> Assign/Assigned -> RUNNING: train … evaluate … train ->
//   evaluate -> export -> every shard reported -> files written -> SUCCEEDED
//   user error, cancel: seal -> report -> files -> FAILED, CANCELLED
//
// Job takes the calls of the control plane and passes each to the part that it concerns
// (job_parts.h). JobLife has the effects of the phases. The ClosureBook decides the protocol
// (LEDGER lines 18 to 26): the job commits the records of the book, then sends. Not thread-safe:
// every call comes from the coordinator's control executor. No clock and no I/O but through
// JobHost, so the tests and the daemon run the same class.
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
  Job(JobHost* host, const JobOptions& options, Identity identity);  // host outlives the job
  // Restores a job as the store has it, before this life of the coordinator has a term; Resume
  // follows. The errors DataLoss and InvalidArgument name the job.
  static absl::StatusOr<std::unique_ptr<Job>> Restore(JobHost* host, const JobOptions& options,
                                                      JobUid uid, const StoredJob& stored);
  ~Job();

  // --- life
  // The job is accepted: a persistent store has it from now on. Nobody may be told of it earlier.
  // Returns false if the store failed.
  bool Keep() { return life_.PersistWhole(); }
  void Start() { life_.Start(); }  // QUEUED -> STARTING. Tasks are told by Admit… before and after.
  // Begins line 18 of this life for a restored job that had started. Servers register, then
  // CloseWindow follows, then workers register.
  void Resume(Term term) { life_.Resume(term); }
  void Cancel() { life_.Cancel(); }  // A repeat, or a call after the end, changes nothing.
  void Tick();                       // Every few tens of milliseconds.
  bool ended() const { return parts_.phases.ended(); }
  bool started() const { return parts_.phases.started(); }
  bool writing() const { return parts_.phases.In(JobPhase::kWriting); }  // ended but for its files
  JobState state() const { return parts_.phases.state(); }
  JobUid uid() const { return parts_.id.uid; }
  const std::string& name() const { return parts_.id.spec.name; }
  const std::string& runs_folder() const { return parts_.id.runs_folder; }
  std::uint64_t revision() const { return parts_.news.revision(); }

  // --- tasks. Admit… comes first (it fills the task's Registered and sends nothing to the task),
  // then Registered is sent, then Ready follows.
  void AdmitWorker(TaskId task, const std::string& identity, MonoTime backoff_until,
                   std::optional<TaskId> former, bool former_died, const v1::Hello& hello,
                   v1::Registered* registered);
  // InvalidArgument: a set in the Hello is malformed, and nothing has changed.
  absl::Status AdmitServer(TaskId task, const std::string& identity, std::optional<TaskId> former,
                           bool former_died, const v1::Hello& hello, v1::Registered* registered);
  void Ready(TaskId task);
  // Call it between Admit and Ready for a worker that has sent nothing since its Hello. Until
  // Speaks the worker gets no work, and its end has no consequence for this job.
  void Withhold(TaskId task) { parts_.worker_admission.Withhold(task); }
  void Speaks(TaskId task);
  // The time for which the worker gets no work, because it died again and again.
  std::chrono::milliseconds BacksOffFor(TaskId worker) const {
    return parts_.roster.BacksOffFor(worker);
  }
  void Warn(const std::string& text) {  // an event of kind warning, unless the job has ended
    if (active()) life_.Event("warning", text);
  }
  void Tell(const std::string& text) {  // the same of kind state
    if (active()) life_.Event("state", text);
  }
  void OnWorkerGone(TaskId task, absl::string_view reason, bool leaving);
  // The task was given notice. With `drains`, a server stays until its shards have been moved, and
  // then gets a Drained. A repeat changes nothing.
  void OnLeaving(TaskId task, absl::string_view reason, bool drains);
  // Another job needs the worker, and a worker serves one job: it gets nothing more here, and gives
  // back the work that it has not begun.
  void CallBack(TaskId task);
  // It holds work of this job, or its thread is not back from revoked work.
  bool Holds(TaskId task) const { return parts_.roster.Holds(task); }
  void ReleaseWorker(TaskId task);  // it serves another job from now on
  // The number of workers that the job can use now, and the number of its workers that have had
  // work within the last `while_`.
  std::uint32_t useful_workers() const;
  std::uint32_t busy_workers(std::chrono::milliseconds while_) const {
    return parts_.roster.Busy(while_);
  }
  // The functions that closures of a functions job wait for or run; only a worker that has one of
  // them is of use. nullopt: every worker is.
  std::optional<std::set<std::string>> wanted_functions() const {
    return parts_.source->WantedFunctions(parts_.roster.workers());
  }
  // The process has said that it cannot take part, and is not tried again yet.
  bool IsUnfit(std::uint64_t process) const { return parts_.roster.IsAside(process); }
  void SetWorkersElsewhere(std::uint32_t workers) {
    parts_.roster.SetElsewhere(workers);
  }  // The number that serve other jobs, for texts.
  double share() const { return parts_.id.spec.resources.share; }
  bool keeps_its_worker() const { return parts_.id.spec.strategy.deterministic; }
  void OnServerAway(TaskId task, absl::string_view reason) {  // The job waits for it.
    parts_.server_admission.OnAway(task, reason);
  }
  void OnServerLost(TaskId task, absl::string_view identity, absl::string_view reason,
                    bool leaving);
  // [18] A task knew of a higher term: every task registers anew, grants wait until CloseWindow.
  void BeginAnew(Term term) { life_.BeginAnew(term); }
  void CloseWindow() { life_.CloseWindow(); }

  // A message of `task` about this job. InvalidArgument: it is malformed, and nothing has changed.
  // A Done is neither committed nor answered yet: while turn_open(), the caller makes sure that
  // EndTurn follows soon.
  absl::Status OnMessage(TaskId task, const v1::TaskMessage& message);
  // Commits the changes of all Dones since the last turn at once, answers the Dones, and grants
  // whatever can be granted then.
  bool turn_open() const { return parts_.turn.open(); }
  void EndTurn() { life_.EndTurn(); }
  // The first half of EndTurn. Call it before anything leaves that could follow from the Dones.
  // Returns false if the store failed.
  bool CommitTurn() { return parts_.turn.Commit(); }

  // --- closures as an API. FailedPrecondition: the job is of another type than functions.
  absl::StatusOr<FunctionCalls*> function_calls();

  // --- questions
  // The coordinator adds the reason for which the job is queued, and the number of its workers.
  void FillStatus(v1::JobStatus* status, std::uint64_t events_after) const {
    FillJobStatus(parts_, events_after, status);
  }
  // Asks every owner of a running job, or answers with the final report of an ended one. `done` may
  // be called at once.
  using ShardAnswer = ShardQueries::Answer;
  void QueryShards(bool digests, std::chrono::milliseconds timeout, ShardQueries::Done done) {
    parts_.report.Ask(digests, timeout, std::move(done));
  }
  const v1::Plan* plan_message() const { return parts_.plan ? &parts_.plan.message() : nullptr; }
  std::string WaitingFor() const { return parts_.waits.Text(); }
  std::uint64_t steps_done() const { return parts_.epochs.steps_done(); }
  std::uint64_t open_closures() const { return parts_.book ? parts_.book->InFlight() : 0; }
  // The number of ended closures behind the oldest one that has not ended: at most
  // closures_behind_max, because no new one is granted beyond.
  std::uint64_t closures_behind() const { return parts_.epochs.waiting(); }
  // The age of the newest checkpoint, or of the job if it has none; nullopt: it makes none.
  std::optional<double> checkpoint_age_seconds() const { return CheckpointAgeSeconds(parts_); }
  // How often this limit held new closures back, since the last call.
  std::uint64_t TakeWindowRefusals() { return parts_.source->TakeWindowRefusals(); }
  bool TakeEnd() { return ended() && !std::exchange(end_taken_, true); }  // true once

 private:
  struct Restored {};  // Chooses the constructor of a job that the store has already.
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

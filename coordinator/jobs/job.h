// One job from submission to its end: QUEUED -> STARTING -> RUNNING -> SUCCEEDED | FAILED |
// CANCELLED.
//
//   describe closure -> plan -> place -> Assign/Assigned -> RUNNING: train … evaluate … train ->
//   evaluate -> export -> every shard reported -> files written -> SUCCEEDED
//   user error, cancel: seal -> report -> files -> FAILED, CANCELLED
//
// The ClosureBook decides the protocol (LEDGER lines 18 to 26). The job commits the records of the
// book, then sends. JobKind and ClosureSource decide what differs by type of job. Not thread-safe:
// every call comes from the coordinator's control executor. The class has no clock and no I/O but
// through JobHost, so the tests and the daemon run the same class.
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
#include "coordinator/jobs/checkpoint_resume.h"
#include "coordinator/jobs/checkpoint_rounds.h"
#include "coordinator/jobs/closure_source.h"
#include "coordinator/jobs/closure_totals.h"
#include "coordinator/jobs/death_watch.h"
#include "coordinator/jobs/done_turn.h"
#include "coordinator/jobs/event_log.h"
#include "coordinator/jobs/export_files.h"
#include "coordinator/jobs/failpoint_hold.h"
#include "coordinator/jobs/final_report.h"
#include "coordinator/jobs/function_calls.h"
#include "coordinator/jobs/granter.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/job_journal.h"
#include "coordinator/jobs/job_kind.h"
#include "coordinator/jobs/job_notices.h"
#include "coordinator/jobs/job_phases.h"
#include "coordinator/jobs/job_plan.h"
#include "coordinator/jobs/job_waits.h"
#include "coordinator/jobs/job_worker.h"
#include "coordinator/jobs/journal_writer.h"
#include "coordinator/jobs/reading_work.h"
#include "coordinator/jobs/run_output.h"
#include "coordinator/jobs/run_result.h"
#include "coordinator/jobs/run_times.h"
#include "coordinator/jobs/sealed_export.h"
#include "coordinator/jobs/server_admission.h"
#include "coordinator/jobs/shard_mover.h"
#include "coordinator/jobs/shard_seal.h"
#include "coordinator/jobs/task_totals.h"
#include "coordinator/jobs/training_rate.h"
#include "coordinator/jobs/training_work.h"
#include "coordinator/jobs/work_revoker.h"
#include "coordinator/jobs/worker_admission.h"
#include "coordinator/jobs/worker_claims.h"
#include "coordinator/jobs/worker_pin.h"
#include "coordinator/jobs/worker_reports.h"
#include "coordinator/jobs/worker_roster.h"
#include "evergrad/v1/api.pb.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::v1 {
class JobCounters;
class JobNote;
class JobSnapshot;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

class Job final : private JobActions {
 public:
  using Identity = JobIdentity;
  Job(JobHost* host, JobOptions options, Identity identity);  // host outlives the job
  // Restores a job as the store has it, before this life of the coordinator has a term; Resume
  // follows. The errors DataLoss and InvalidArgument name the job.
  static absl::StatusOr<std::unique_ptr<Job>> Restore(JobHost* host, JobOptions options, JobUid uid,
                                                      const StoredJob& stored);
  ~Job();

  // --- life
  // The job is accepted: a persistent store has it from now on. Nobody may be told of it earlier.
  // Returns false if the store failed.
  bool Keep();
  void Start();  // QUEUED -> STARTING. Tasks are told by Admit… before and after.
  // Begins line 18 of this life for a restored job that had started. Servers register, then
  // CloseWindow follows, then workers register.
  void Resume(Term term);
  void Cancel();  // A repeat, or a call after the end, changes nothing.
  void Tick();    // Every few tens of milliseconds.
  bool ended() const { return phases_.ended(); }
  bool started() const { return phases_.started(); }
  bool writing() const { return phases_.In(JobPhase::kWriting); }  // ended but for its files
  JobState state() const { return phases_.state(); }
  JobUid uid() const { return id_.uid; }
  const std::string& name() const { return id_.spec.name; }
  const std::string& runs_folder() const { return id_.runs_folder; }
  std::uint64_t revision() const { return revision_; }

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
  void Withhold(TaskId task) { worker_admission_.Withhold(task); }
  void Speaks(TaskId task);
  // The time for which the worker gets no work, because it died again and again.
  std::chrono::milliseconds BacksOffFor(TaskId worker) const { return roster_.BacksOffFor(worker); }
  void Warn(const std::string& text);   // an event of kind warning, unless the job has ended
  void Tell(const std::string& text) {  // the same of kind state
    if (active()) Event("state", text);
  }
  void OnWorkerGone(TaskId task, absl::string_view reason, bool leaving);
  // The task was given notice. With `drains`, a server stays until its shards have been moved, and
  // then gets a Drained. A repeat changes nothing.
  void OnLeaving(TaskId task, absl::string_view reason, bool drains);
  // Another job needs the worker, and a worker serves one job: it gets nothing more here, and gives
  // back the work that it has not begun.
  void CallBack(TaskId task);
  // It holds work of this job, or its thread is not back from revoked work.
  bool Holds(TaskId task) const { return roster_.Holds(task); }
  void ReleaseWorker(TaskId task);  // it serves another job from now on
  // The number of workers that the job can use now, and the number of its workers that have had
  // work within the last `while_`.
  std::uint32_t useful_workers() const;
  std::uint32_t busy_workers(std::chrono::milliseconds while_) const {
    return roster_.Busy(while_);
  }
  // The functions that closures of a functions job wait for or run; only a worker that has one of
  // them is of use. nullopt: every worker is.
  std::optional<std::set<std::string>> wanted_functions() const {
    return source_->WantedFunctions(roster_.workers());
  }
  // The process has said that it cannot take part, and is not tried again yet.
  bool IsUnfit(std::uint64_t process) const { return roster_.IsAside(process); }
  void SetWorkersElsewhere(std::uint32_t workers) {
    roster_.SetElsewhere(workers);
  }  // The number that serve other jobs, for texts.
  double share() const { return id_.spec.resources.share; }
  bool keeps_its_worker() const { return id_.spec.strategy.deterministic; }
  void OnServerAway(TaskId task, absl::string_view reason) {  // The job waits for it.
    server_admission_.OnAway(task, reason);
  }
  void OnServerLost(TaskId task, absl::string_view identity, absl::string_view reason,
                    bool leaving);
  // [18] A task knew of a higher term: every task registers anew, grants wait until CloseWindow.
  void BeginAnew(Term term);
  void CloseWindow();

  // A message of `task` about this job. InvalidArgument: it is malformed, and nothing has changed.
  // A Done is neither committed nor answered yet: while turn_open(), the caller makes sure that
  // EndTurn follows soon.
  absl::Status OnMessage(TaskId task, const v1::TaskMessage& message);
  // Commits the changes of all Dones since the last turn at once, answers the Dones, and grants
  // whatever can be granted then.
  bool turn_open() const { return turn_.open(); }
  void EndTurn();
  // The first half of EndTurn. Call it before anything leaves that could follow from the Dones.
  // Returns false if the store failed.
  bool CommitTurn() { return turn_.Commit(); }

  // --- closures as an API. FailedPrecondition: the job is of another type than functions.
  absl::StatusOr<FunctionCalls*> function_calls();

  // --- questions
  // The coordinator adds the reason for which the job is queued, and the number of its workers.
  void FillStatus(v1::JobStatus* status, std::uint64_t events_after) const;
  // Asks every owner of a running job, or answers with the final report of an ended one. `done` may
  // be called at once.
  using ShardAnswer = ShardQueries::Answer;
  void QueryShards(bool digests, std::chrono::milliseconds timeout, ShardQueries::Done done) {
    report_.Ask(digests, timeout, std::move(done));
  }
  const v1::Plan* plan_message() const { return plan_ ? &plan_.message() : nullptr; }
  std::string WaitingFor() const { return waits_.Text(); }
  std::uint64_t steps_done() const { return epochs_.steps_done(); }
  std::uint64_t open_closures() const { return book_ ? book_->InFlight() : 0; }
  // The number of ended closures behind the oldest one that has not ended: at most
  // closures_behind_max, because no new one is granted beyond.
  std::uint64_t closures_behind() const { return epochs_.waiting(); }
  // The age of the newest checkpoint, or of the job if it has none; nullopt: it makes none.
  std::optional<double> checkpoint_age_seconds() const;
  // How often this limit held new closures back, since the last call.
  std::uint64_t TakeWindowRefusals() { return source_->TakeWindowRefusals(); }
  bool TakeEnd() { return ended() && !std::exchange(end_taken_, true); }  // true once

 private:
  struct Restored {};  // Chooses the constructor of a job that the store has already.
  Job(JobHost* host, JobOptions options, Identity identity, Restored);

  using Worker = JobWorker;
  // job.cc
  ClosureSourceParts SourceParts();
  JobPart Part() {
    return {host_, options_, id_, plan_.plan(), plan_.message(), book_, shards_, *this};
  }
  void Event(absl::string_view kind, const std::string& text) override;
  void Touch() override { touched_ = true; }
  void TickCheckpoints(MonoTime now);

  bool Persist(const Record& record) override { return journal_.Persist(record); }
  bool PersistWhole() override { return journal_.PersistWhole(); }
  v1::JobNote* NoteIfJournaled() override { return journal_.writer().Note(); }
  absl::Status RestoreBook(const DurableState& state);
  void ShowRefusal(const std::string& refusal);
  bool active() const { return phases_.active(); }
  bool grants_stopped() const override { return phases_.grants_stopped(); }
  void SendMap() override { notices_.SendMap(); }
  void SendCloses() override {
    if (!grants_stopped() && !phases_.window_open()) notices_.SendCloses();
  }
  Worker* FindWorker(TaskId task) { return roster_.Find(task); }

  // Also looks whether a phase is over.
  void Pump() override;
  void SayNotReproducible(const std::string& why) override;
  void OnHeartbeat(TaskId task, const v1::Heartbeat& heartbeat);

  RunFacts Facts() const;
  EpochAccount::Context AccountContext();
  ClosureBook::Options BookOptions() const;

  // job_life.cc
  // Begins the phase that follows `event`. Returns false if the event is refused, or if the store
  // failed, which ends the job's life in this process.
  bool Apply(PhaseEvent event);
  void SetStages();            // Of the parts that have stages.
  bool Enter(JobPhase phase);  // The effects of the phase. Returns false if the store failed.
  void ResumePhase();
  void Describe();
  void OnDescribed(const v1::DescribeResult& described);
  void BeginPlan();
  void Advance();
  void FinishEvaluation();
  void AfterRollback(absl::string_view why) override;
  void BeginReport();
  void Fail(v1::ErrorDetail cause, bool user) override;
  bool BeginSeal();
  void CheckSealed();
  void BeginSealedReport();
  bool WantsSealedExport() const;
  void Finish();
  bool BeginWriting();
  void WriteFiles() { output_.Write(phases_.ending() == JobState::kSucceeded); }
  void End();

  void BeginRate() { rate_.Begin(host_->Now(), epochs_.examples_done()); }
  void SampleRate();

  JobHost* const host_;
  const JobOptions options_;
  const Identity id_;
  const JobKind& kind_;
  JobPlan plan_;
  JobPhases phases_;
  std::uint64_t revision_ = 1;
  bool touched_ = false;
  bool in_pump_ = false;
  bool end_taken_ = false;
  MonoTime next_progress_{0}, next_close_{0};

  EventLog events_;
  FinalReport report_{Part()};
  WorkerRoster roster_{Part(), &epochs_};
  Granter granter_;
  ShardTable shards_;
  DeathWatch deaths_;
  ShardPlacer placer_{Part(), &deaths_.backoff(), &report_.queries()};
  ShardMover mover_{Part(), &placer_};
  TaskTotals totals_;
  JobNotices notices_{Part(), &roster_, &totals_};
  ReadingWork reading_;
  WorkerAdmission worker_admission_;
  ServerAdmission server_admission_{Part(),
                                    {.phases = &phases_,
                                     .notices = &notices_,
                                     .placer = &placer_,
                                     .mover = &mover_,
                                     .seal = &seal_,
                                     .queries = &report_.queries(),
                                     .deaths = &deaths_,
                                     .totals = &totals_,
                                     .want_whole = [this] { journal_.writer().WantWhole(); }}};

  std::unique_ptr<ClosureBook> book_;
  DoneTurn turn_{Part()};

  // Work.
  WorkRevoker revoker_{
      Part(), {.roster = &roster_, .reading = &reading_, .deaths = &deaths_, .source = &source_}};
  FailpointHold evaluation_hold_{"coordinator.evaluate"};

  EpochAccount epochs_;
  WorkerClaims claims_{Part(), &epochs_};
  CheckpointRounds rounds_;
  CheckpointResume resume_;
  ExportFiles export_;
  TrainingRate rate_{options_.curve_points_max};
  RunOutput output_;
  ClosureTotals closure_totals_{Part()};
  JobJournal journal_{Part(),
                      {.phases = &phases_,
                       .times = &times_,
                       .plan = &plan_,
                       .epochs = &epochs_,
                       .rate = &rate_,
                       .closures = &closure_totals_,
                       .tasks = &totals_,
                       .roster = &roster_,
                       .claims = &claims_,
                       .deaths = &deaths_,
                       .events = &events_,
                       .placer = &placer_,
                       .rounds = &rounds_,
                       .exported = &export_,
                       .report = &report_,
                       .output = &output_,
                       .source = &source_}};
  TrainingWork training_{Part(),
                         {.roster = &roster_,
                          .claims = &claims_,
                          .deaths = &deaths_,
                          .turn = &turn_,
                          .journal = &journal_.writer(),
                          .totals = &closure_totals_,
                          .source = &source_}};
  const std::unique_ptr<ClosureSource> source_;

  // The end.
  ShardSeal seal_{Part()};
  SealedExport sealed_export_;
  WorkerReports reports_{
      Part(),
      {.phases = &phases_,
       .roster = &roster_,
       .deaths = &deaths_,
       .turn = &turn_,
       .training = &training_,
       .reading = &reading_,
       .sealed_export = &sealed_export_,
       .source = &source_},
      {.described = [this](const v1::DescribeResult& described) { OnDescribed(described); },
       .evaluated = [this] { FinishEvaluation(); },
       .exported = [this](const v1::ExportResult& result,
                          const std::string& worker) { export_.OnExported(result, worker); }}};

  RunTimes times_;
  JobWaits waits_{Part(),
                  {.phases = &phases_,
                   .roster = &roster_,
                   .placer = &placer_,
                   .reach = &revoker_.reach(),
                   .exports = &export_,
                   .report = &report_,
                   .rounds = &rounds_,
                   .seal = &seal_,
                   .source = &source_}};
};

}  // namespace evergrad::coordinator

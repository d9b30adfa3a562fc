#include "coordinator/jobs/job.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/client/run_file_names.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

constexpr std::chrono::milliseconds kProgressEvery{100};

void FillCheckpoint(const CheckpointRounds& rounds, v1::JobStatus* status) {
  const v1::CheckpointStatus& newest = rounds.status();
  if (!rounds.on() && newest.number() == 0 && newest.trouble().empty()) return;
  *status->mutable_checkpoint() = newest;
  if (newest.uri().empty()) status->mutable_checkpoint()->set_uri(rounds.folder());
}

std::optional<FormerTask> FormerOf(std::optional<TaskId> former, bool died) {
  if (!former) return std::nullopt;
  return FormerTask{*former, died};
}

}  // namespace

Job::Job(JobHost* host, JobOptions options, Identity identity)
    : Job(host, options, std::move(identity), Restored{}) {
  times_.submitted_ms = host_->WallMillis();
  Event("state", "submitted");
}

Job::Job(JobHost* host, JobOptions options, Identity identity, Restored)
    : host_(host),
      options_(options),
      id_(std::move(identity)),
      kind_(JobKind::Of(id_.spec)),
      plan_(&id_, &options_, &shards_, &epochs_),
      events_(options.events_max),
      deaths_(Part(), &events_, [this](ClosureId closure) { return source_->NameOf(closure); }),
      reading_(Part(), &roster_,
               {.blocked = [this] { return training_.GrantsBlocked(); },
                .fill_order = [this](v1::ExportOrder* order) { export_.FillOrder(order); },
                .no_space = [this](ReadingRound::Closure* closure,
                                   absl::string_view why) { export_.OnNoSpace(closure, why); }}),
      worker_admission_(Part(),
                        {.phases = &phases_,
                         .claims = &claims_,
                         .notices = &notices_,
                         .roster = &roster_,
                         .reading = &reading_,
                         .deaths = &deaths_,
                         .totals = &totals_},
                        {.knows = [this](ClosureId closure) { return source_->Knows(closure); },
                         .adopted = std::bind_front(&ClosureTotals::OnAdopted, &closure_totals_),
                         .want_whole = [this] { journal_.writer().WantWhole(); }}),
      epochs_({id_.spec.training.epochs,
               id_.spec.training.evaluate_every_epochs,
               kind_.counts_only(),
               {options.step_lines_burst, options.step_lines_per_second, options.curve_points_max}},
              host->Now()),
      rounds_(Part(), &epochs_,
              {.round_ended = [this] { source_->OnRoundEnded(); },
               .saved = [this](const v1::Manifest& manifest) { source_->OnSaved(manifest); },
               .over = [this] { Finish(); }}),
      resume_(Part(), &epochs_, &claims_, &rounds_,
              {.done = [this] { BeginPlan(); },
               .account_context = [this] { return AccountContext(); }}),
      export_(Part(), &reading_, &rounds_,
              {.again =
                   [this](MonoTime not_before) {
                     reading_.Begin(v1::EXPORT, 1, not_before);
                     Pump();
                   },
               .done =
                   [this] {
                     Apply(phases_.In(JobPhase::kSealedExporting) ? PhaseEvent::kFinished
                                                                  : PhaseEvent::kExported);
                   },
               .gave_up = [this](absl::string_view why) { sealed_export_.GiveUp(why); }}),
      output_(Part(), {.facts = [this] { return Facts(); },
                       .written = [this] { Apply(PhaseEvent::kWritten); }}),
      source_(kind_.MakeSource(Part(), SourceParts())),
      sealed_export_(Part(), &reading_, &roster_, &rounds_.status(),
                     {.send_job = [this](TaskId task) { notices_.Introduce(task); },
                      .over = [this] { Finish(); }}) {
  times_.submitted_at = host_->Now();
}

Job::~Job() = default;

ClosureSourceParts Job::SourceParts() {
  return {.epochs = &epochs_,
          .totals = &totals_,
          .rounds = &rounds_,
          .claims = &claims_,
          .journal = &journal_.writer(),
          .grants = &training_,
          .account_context = [this] { return AccountContext(); },
          .revoke = std::bind_front(&TrainingWork::OnCancelled, &training_),
          .calls = {.refusal = [this] { return phases_.CallsRefusal(name()); },
                    .waiting_for = [this] { return WaitingFor(); }}};
}

// ---------------------------------------------------------------- from the store

bool Job::Keep() { return PersistWhole(); }

absl::StatusOr<std::unique_ptr<Job>> Job::Restore(JobHost* host, JobOptions options, JobUid uid,
                                                  const StoredJob& stored) {
  v1::JobSnapshot snapshot;
  const auto named = [&](const absl::Status& status) {
    return absl::Status(
        status.code(),
        absl::StrCat("cannot resume a job of the journal: job=", JobUidString(uid),
                     snapshot.name().empty() ? "" : absl::StrCat(" name=", snapshot.name()),
                     " reason=", status.message()));
  };
  if (stored.snapshot.empty() || !snapshot.ParseFromString(stored.snapshot))
    return named(absl::DataLossError("its snapshot is missing or unreadable"));
  std::string refusal;
  absl::StatusOr<JobIdentity> id = JobJournal::IdentityOf(uid, snapshot, &refusal);
  if (!id.ok()) return named(id.status());
  std::unique_ptr<Job> job(new Job(host, options, *std::move(id), Restored{}));
  const auto make_book = [&] { return job->RestoreBook(stored.state); };
  if (absl::Status status = job->journal_.Read(snapshot, stored, make_book, &refusal); !status.ok())
    return named(status);
  job->SetStages();
  job->end_taken_ = job->ended();
  if (!refusal.empty()) job->ShowRefusal(refusal);
  job->phases_.OpenWindow();  // until Resume and CloseWindow nothing moves
  if (job->active()) job->output_.lines().Resume();
  return job;
}

absl::Status Job::RestoreBook(const DurableState& state) {
  const ClosureBook::Options options = BookOptions();
  if (state.map.size() > options.shards) {
    return absl::InvalidArgumentError(absl::StrCat(
        "more shards than the plan has: shards=", state.map.size(), " want=", options.shards));
  }
  book_ = std::make_unique<ClosureBook>(options, state);
  shards_.Restore(*book_);
  return absl::OkStatus();
}

// ---------------------------------------------------------------- life

void Job::Tick() {
  if (!active()) return;
  const MonoTime now = host_->Now();
  training_.Release(now);
  turn_.SendDelayed(now);
  placer_.Retry(now);
  deaths_.Judge();
  mover_.SendMap(true);
  revoker_.Check(phases_.window_open());
  report_.Check();
  source_->CheckClosing();
  CheckSealed();
  if (!phases_.window_open()) sealed_export_.Pump();
  if (ended()) return;
  if (now >= next_close_) {
    next_close_ = now + options_.close_every;
    SendCloses();
  }
  while (server_admission_.LoseMissing()) {
    CheckSealed();
    Pump();
  }
  if (ended()) return;
  if (phases_.In(JobPhase::kTraining) && rate_.IsDue(now)) SampleRate();
  TickCheckpoints(now);
  if (ended()) return;
  journal_.FlushLines();
  if (touched_ && now >= next_progress_) {
    next_progress_ = now + kProgressEvery;
    touched_ = false;
    ++revision_;
    host_->JobChanged(id_.uid);
  }
  Pump();
}

void Job::TickCheckpoints(MonoTime now) {
  if (phases_.window_open()) return;
  const bool hurry = phases_.In(JobPhase::kTraining) && source_->WantsRound();
  rounds_.Tick(now, hurry);
  if (hurry) source_->OnRoundTick();
}

std::optional<double> Job::checkpoint_age_seconds() const {
  if (!rounds_.on() || !active()) return std::nullopt;
  const v1::CheckpointStatus& newest = rounds_.status();
  const std::int64_t since_ms = newest.number() == 0 ? times_.started_ms : newest.written_ms();
  // The wall clock may have been set back.
  return static_cast<double>(std::max<std::int64_t>(0, host_->WallMillis() - since_ms)) / 1000;
}

void Job::Event(absl::string_view kind, const std::string& text) {
  const v1::Event& event = events_.Add(kind, text, host_->WallMillis(), NoteIfJournaled());
  host_->Log(kind == "warning" || kind == "death" ? log::Level::kWarning : log::Level::kInfo,
             absl::StrCat(kind, ": ", event.text()), id_.spec.name);
  output_.AddEvent(event);
  ++revision_;
  host_->JobChanged(id_.uid);
}

// Of an ended job: not in the journal nor in metrics.jsonl, each life of the coordinator says it
// anew.
void Job::ShowRefusal(const std::string& refusal) {
  const v1::Event& event = events_.Add(
      "warning", absl::StrCat("restored from the journal without its variables: ", refusal),
      host_->WallMillis(), nullptr);
  host_->Log(log::Level::kWarning, absl::StrCat("an ended job is ", event.text()), id_.spec.name);
}

void Job::Pump() {
  if (in_pump_ || !active() || phases_.window_open()) return;
  in_pump_ = true;
  if (!grants_stopped()) {
    placer_.Place();
    Advance();
    if (phases_.In(JobPhase::kTraining)) source_->Grant(granter_, roster_.workers());
    // What came before may have ended the job early.
    if (!grants_stopped() && phases_.ReadingKind() != v1::WORK_KIND_UNSPECIFIED) reading_.Grant();
    mover_.Pump();
  }
  in_pump_ = false;
}

void Job::SayNotReproducible(const std::string& why) {
  if (!id_.spec.strategy.deterministic) return;
  Event("warning", absl::StrCat("deterministic: ", why,
                                "; updates that had reached only some of the shards are completed "
                                "from values that were read later, so the results "
                                "may differ in bits from those of an undisturbed run"));
}

// ---------------------------------------------------------------- tasks

void Job::AdmitWorker(TaskId task, const std::string& identity, MonoTime backoff_until,
                      std::optional<TaskId> former, bool former_died, const v1::Hello& hello,
                      v1::Registered* registered) {
  worker_admission_.Admit(task, identity, backoff_until, FormerOf(former, former_died), hello,
                          registered);
}

absl::Status Job::AdmitServer(TaskId task, const std::string& identity,
                              std::optional<TaskId> former, bool former_died,
                              const v1::Hello& hello, v1::Registered* registered) {
  return server_admission_.Admit(task, identity, FormerOf(former, former_died), hello, registered);
}

void Job::Ready(TaskId task) {
  if (worker_admission_.Ready(task) || server_admission_.Ready(task)) Pump();
}

void Job::Speaks(TaskId task) {
  if (worker_admission_.Speaks(task)) Pump();
}

void Job::Warn(const std::string& text) {
  if (active()) Event("warning", text);
}

void Job::OnWorkerGone(TaskId task, absl::string_view reason, bool leaving) {
  if (worker_admission_.OnGone(task, reason, leaving)) Pump();
}

void Job::OnLeaving(TaskId task, absl::string_view said, bool drains) {
  const std::string reason =
      said.empty() ? std::string("no reason given") : client::CleanText(said, 200);
  if (worker_admission_.OnLeaving(task, reason)) return;
  if (server_admission_.OnLeaving(task, reason, drains)) Pump();
}

void Job::OnServerLost(TaskId task, absl::string_view identity, absl::string_view reason,
                       bool leaving) {
  if (!server_admission_.OnLost(task, std::string(identity), reason, leaving)) return;
  CheckSealed();
  Pump();
}

// ---------------------------------------------------------------- beside other jobs

void Job::CallBack(TaskId task) {
  Worker* worker = FindWorker(task);
  if (worker == nullptr || std::exchange(worker->called_back, true)) return;
  roster_.RecallAll(worker);
}

void Job::ReleaseWorker(TaskId task) {
  EndTurn();  // Its Dones are answered first.
  if (worker_admission_.Release(task)) Pump();
}

std::uint32_t Job::useful_workers() const {
  if (WantsSealedExport()) return 1;
  if (!active() || grants_stopped()) return 0;
  if (id_.spec.strategy.deterministic) return 1;
  std::uint64_t useful = 1;
  if (phases_.In(JobPhase::kEvaluating)) useful = reading_.left();
  if (phases_.In(JobPhase::kReporting) || phases_.In(JobPhase::kSaving)) useful = 0;
  if (phases_.In(JobPhase::kTraining)) useful = source_->UsefulWorkers(roster_.workers().size());
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(useful, 1u << 30));
}

// ---------------------------------------------------------------- messages

void Job::EndTurn() {
  if (turn_.End()) Pump();
}

absl::Status Job::OnMessage(TaskId task, const v1::TaskMessage& message) {
  switch (message.message_case()) {
    case v1::TaskMessage::kHeartbeat:
      OnHeartbeat(task, message.heartbeat());
      return absl::OkStatus();
    case v1::TaskMessage::kDone: return reports_.OnDone(task, message.done());
    case v1::TaskMessage::kFailed:
      reports_.OnFailed(task, message.failed());
      return absl::OkStatus();
    case v1::TaskMessage::kDropped:
      reports_.OnDropped(task, message.dropped());
      return absl::OkStatus();
    case v1::TaskMessage::kAssigned:
      if (placer_.OnAssigned(task, message.assigned())) Pump();
      return absl::OkStatus();
    case v1::TaskMessage::kClosed:
      if (book_ && message.closed().shard() < shards_.size()) {
        book_->OnClosed(task, ShardId(message.closed().shard()),
                        client::FromProto<ShardEpoch>(message.closed().epoch()),
                        message.closed().taken());
        const bool wanted = phases_.In(JobPhase::kSaving) || source_->WantsRound();
        if (wanted && !rounds_.round_open()) TickCheckpoints(host_->Now());
        source_->CheckClosing();
      }
      return absl::OkStatus();
    case v1::TaskMessage::kSealed:
      if (phases_.In(JobPhase::kSealing)) {
        seal_.OnSealed(task, message.sealed());
        CheckSealed();
      }
      return absl::OkStatus();
    case v1::TaskMessage::kShardReport:
      report_.OnReport(task, message.shard_report());
      return absl::OkStatus();
    case v1::TaskMessage::kStopped:
      mover_.OnStopped(task, message.stopped());
      return absl::OkStatus();
    case v1::TaskMessage::kReceived:
      mover_.OnReceived(task, message.received());
      return absl::OkStatus();
    case v1::TaskMessage::kRunFile: return export_.OnChunk(task, message.run_file());
    case v1::TaskMessage::kShardDurable: return rounds_.OnDurable(task, message.shard_durable());
    default: return absl::OkStatus();
  }
}

void Job::OnHeartbeat(TaskId task, const v1::Heartbeat& heartbeat) {
  // What it says while it has not heard of this job yet is of the one that it served before.
  if (Worker* worker = FindWorker(task); worker != nullptr && heartbeat.has_worker() &&
                                         heartbeat.worker().job_uid() == id_.uid.value()) {
    roster_.OnProgress(worker, heartbeat.worker());
    if (active()) roster_.TellPauses();
    totals_.ReportWorker(worker->identity, heartbeat.worker());
  }
  if (heartbeat.has_server()) server_admission_.OnProgress(task, heartbeat.server());
}

// ---------------------------------------------------------------- the calls of clients

absl::StatusOr<FunctionCalls*> Job::function_calls() {
  if (FunctionCalls* const calls = source_->calls()) return calls;
  return UserError(absl::FailedPreconditionError(
      absl::StrCat("closures can be scheduled only in jobs of spec.type functions: job=", name(),
                   " type=", id_.spec.type)));
}

// ---------------------------------------------------------------- status

void Job::FillStatus(v1::JobStatus* status, std::uint64_t events_after) const {
  status->set_job_uid(id_.uid.value());
  status->set_name(id_.spec.name);
  status->set_state(std::string(JobStateName(state())));
  status->set_revision(revision_);
  status->set_waiting_for(WaitingFor());
  // A rolled-back shard's closures are run again while the job's own counters stand still: said, or
  // it looks stuck.
  status->set_phase(phases_.In(JobPhase::kTraining) && book_ && book_->RepairsPending()
                        ? "repairing"
                        : std::string(JobPhaseName(phases_.phase())));
  if (phases_.cause() && ended()) *status->mutable_first_cause() = *phases_.cause();
  status->set_runs_folder(id_.runs_folder);
  status->set_runs_host(host_->HostName());
  status->set_runs_mark(client::RunMark(id_.uid));
  source_->FillStatus(status);
  closure_totals_.FillStatus(ended(), epochs_.succeeded(), status);
  status->set_share(share());
  plan_.FillStatus(status);
  if (active()) server_admission_.FillStatus(status);
  status->set_updates_exact(ended() && claims_.updates_exact());
  epochs_.FillStatus({.active = active(),
                      .ended = ended(),
                      .training = phases_.In(JobPhase::kTraining),
                      .paused = waits_.TrainingPaused(),
                      .planned = plan_ && !source_->has_callers(),
                      .rate = rate_.rate()},
                     status);
  if (active()) deaths_.FillStatus(roster_.workers(), status);
  roster_.FillStatus(totals_.WorkerRows(), status);
  events_.FillStatus(events_after, status);
  status->set_result_json(ended() ? output_.result() : "");
  status->set_weights_exported(export_.weights_exported());
  times_.FillStatus(status);
  status->set_shards_rolled_back(placer_.rolled_back());
  FillCheckpoint(rounds_, status);
}

// What the files of a run are made of (run_output.h).
RunFacts Job::Facts() const {
  RunFacts facts{.id = id_,
                 .times = times_,
                 .started = !phases_.never_started(),
                 .state = std::string(JobStateName(phases_.ending())),
                 .cause = phases_.cause() ? &*phases_.cause() : nullptr,
                 .epochs = epochs_,
                 .rate = rate_,
                 .closures = closure_totals_.Counts(epochs_.succeeded()),
                 .tasks = totals_,
                 .events = events_,
                 .plan = plan_message(),
                 .model_summary = plan_.described().model_summary(),
                 .shards = report_.answer(),
                 .shards_rolled_back = placer_.rolled_back(),
                 .updates_exact = claims_.updates_exact(),
                 .checkpoint = rounds_.status(),
                 .files = export_.files()};
  source_->FillResult(&facts.source);
  return facts;
}

EpochAccount::Context Job::AccountContext() {
  return {host_->Now(), host_->WallMillis(), &output_.lines()};
}

}  // namespace evergrad::coordinator

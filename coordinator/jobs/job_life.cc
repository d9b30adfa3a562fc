// The life of a job: what begins and ends its phases (job_phases.h), and the effects of each phase.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/job_error.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

constexpr int kDescribeWarningsMax = 16;

CheckpointRounds::Stage StageOf(JobPhase phase) {
  using Stage = CheckpointRounds::Stage;
  if (phase >= JobPhase::kWriting) return Stage::kOver;
  if (phase == JobPhase::kSealedSaving) return Stage::kSealed;
  if (phase >= JobPhase::kSealing) return Stage::kSealing;
  if (phase == JobPhase::kSaving) return Stage::kLast;
  return phase >= JobPhase::kTraining ? Stage::kWorking : Stage::kNone;
}

ExportFiles::Stage ExportStageOf(JobPhase phase) {
  using Stage = ExportFiles::Stage;
  return phase == JobPhase::kExporting         ? Stage::kSucceeding
         : phase == JobPhase::kSealedExporting ? Stage::kFailed
                                               : Stage::kNone;
}

}  // namespace

// ---------------------------------------------------------------- from outside

void Job::Start() {
  if (started()) return;
  times_.started_ms = host_->WallMillis();
  times_.started_at = host_->Now();
  next_close_ = next_progress_ = times_.started_at;
  output_.WriteJobFile();
  Apply(PhaseEvent::kStarted);
}

void Job::Cancel() {
  if (phases_.In(JobPhase::kSealedExporting))
    return sealed_export_.GiveUp("it was cancelled meanwhile");
  if (!phases_.After(PhaseEvent::kCancelled)) return;
  Event("state", "cancel requested");
  if (!started()) {
    times_.started_ms = host_->WallMillis();
    times_.started_at = host_->Now();
    output_.WriteJobFile();
  }
  Apply(PhaseEvent::kCancelled);
}

void Job::Fail(v1::ErrorDetail cause, bool user) {
  const bool ends_it = phases_.After(PhaseEvent::kFailed).has_value();
  if (!phases_.TakeCause(std::move(cause), user)) return;
  if (!ends_it) {
    PersistWhole();
    return;
  }
  Event("state", absl::StrCat("fails: ", ErrorText(*phases_.cause())));
  Apply(PhaseEvent::kFailed);
}

void Job::BeginAnew(Term term) {
  if (!active()) return;
  phases_.OpenWindow();
  roster_.workers().clear();
  roster_.ForgetPauses();
  server_admission_.DisconnectAll();
  reading_.ReleaseAll();
  training_.ForgetReleases();
  mover_.Forget();  // the sessions of its servers end
  if (book_) Persist(book_->BeginLife(term));
  Event("warning",
        absl::StrCat("a task has seen a later term, so the coordinator began a new one: term=",
                     term.value()));
}

void Job::Resume(Term term) {
  revision_ =
      std::max<std::uint64_t>(revision_, term.value() << 32);  // who waits for a change sees one
  if (!active()) return;
  const MonoTime now = host_->Now();
  roster_.BeginLife();
  phases_.OpenWindow();
  phases_.SetRestored();
  BeginRate();
  next_close_ = next_progress_ = now;
  if (book_) {
    Record begun = book_->BeginLife(term);
    source_->BeginLife(&begun);
    source_->UpdateNewLimit();
    if (!Persist(begun)) return;
    server_admission_.AwaitOwners();
  }
  Event("restart", absl::StrCat("the coordinator restarted: term=", term.value(), ", ",
                                epochs_.succeeded(), " closures had succeeded"));
}

void Job::CloseWindow() {
  if (!phases_.CloseWindow()) return;
  if (book_) book_->CloseWindow();
  training_.CloseWindow();
  EndTurn();
  server_admission_.AwaitFromNowOn();
  if (phases_.TakeRestored()) ResumePhase();
  Pump();
}

// ---------------------------------------------------------------- phases

bool Job::Apply(PhaseEvent event) {
  const std::optional<JobPhase> next = phases_.After(event);
  if (!next) return false;
  if (phases_.In(JobPhase::kTraining)) SampleRate();
  const JobState before = state();
  phases_.Apply(event);
  SetStages();
  Touch();
  if (state() != before) Event("state", std::string(JobStateName(state())));
  return Enter(*next);
}

void Job::SetStages() {
  rounds_.SetStage(StageOf(phases_.phase()));
  export_.SetStage(ExportStageOf(phases_.phase()));
}

// A phase that a restarted coordinator would continue is committed before anything follows from it.
bool Job::Enter(JobPhase phase) {
  switch (phase) {
    case JobPhase::kNone: break;
    case JobPhase::kDescribing:
      if (!PersistWhole()) return false;
      notices_.SendInfo();
      Describe();
      break;
    case JobPhase::kPlacing:
      if (!PersistWhole()) return false;
      notices_.SendInfo();
      Pump();
      break;
    case JobPhase::kTraining: BeginRate(); return PersistWhole();
    case JobPhase::kEvaluating:
      epochs_.BeginEvaluation(host_->Now());
      reading_.Begin(v1::EVALUATE, plan_->eval_closures(), MonoTime{0});
      break;
    case JobPhase::kExporting: reading_.Begin(v1::EXPORT, 1, MonoTime{0}); break;
    case JobPhase::kReporting: BeginReport(); break;
    case JobPhase::kSaving: TickCheckpoints(host_->Now()); break;
    case JobPhase::kSealing: return BeginSeal();
    case JobPhase::kSealedReporting: BeginSealedReport(); break;
    case JobPhase::kSealedSaving: rounds_.BeginRound(); break;
    case JobPhase::kSealedExporting:
      if (!phases_.window_open()) sealed_export_.Pump();
      break;
    case JobPhase::kWriting: return BeginWriting();
    case JobPhase::kEnded: End(); break;
  }
  return true;
}

// The window of a restored job has closed: its phase begins, or continues. What the former life has
// committed and sent on entering it is not repeated, but for the seal, whose answers are lost.
void Job::ResumePhase() {
  BeginRate();  // the window was no training time; what was done meanwhile comes now
  switch (phases_.phase()) {
    case JobPhase::kDescribing: Describe(); break;
    case JobPhase::kSealing: BeginSeal(); break;
    case JobPhase::kWriting: WriteFiles(); break;
    default: break;
  }
}

// The YAML says everything, or a worker is asked.
void Job::Describe() {
  const std::optional<v1::DescribeResult> described = kind_.Describe(id_.spec);
  reading_.Begin(v1::DESCRIBE, described ? 0 : 1, MonoTime{0});
  if (described) return OnDescribed(*described);
  Pump();
}

void Job::OnDescribed(const v1::DescribeResult& described) {
  if (const absl::Status built = plan_.Build(described, placer_.ServersLimit()); !built.ok()) {
    const bool user = BlameOf(built) == Blame::kUser;
    return Fail(MakeError(built, user ? "user" : "internal", "coordinator"), user);
  }
  for (int i = 0; i < std::min(described.warnings_size(), kDescribeWarningsMax); ++i)
    Event("warning", described.warnings(i));
  if (const absl::Status fits = plan_.CheckServerBytes(); !fits.ok())
    return Fail(MakeError(fits, "user", "coordinator"), true);
  if (!journal_.on()) plan_.ForgetVariables();
  if (rounds_.on() && id_.spec.checkpoint.resume) return resume_.Look();
  BeginPlan();
}

ClosureBook::Options Job::BookOptions() const {
  ClosureBook::Options options;
  options.closures = plan_->closures();
  options.shards = shards_.size();
  options.open_max = options_.closures_open_max;
  return options;
}

void Job::BeginPlan() {
  book_ = std::make_unique<ClosureBook>(BookOptions(), DurableState{});
  Record begun = book_->BeginLife(host_->term());
  book_->CloseWindow();
  epochs_.BeginPlan();
  resume_.Apply(&begun);
  source_->UpdateNewLimit();
  Event("state", source_->ReadyText(plan_.described()));
  journal_.writer().Add(begun);
  Apply(PhaseEvent::kPlanned);
}

// A stretch of repair, or of waiting, is no slow training: it would make the time that is left look
// endless.
void Job::SampleRate() {
  if (epochs_.examples_done() == rate_.examples() && waits_.TrainingPaused()) return BeginRate();
  if (!rate_.Sample(times_.started_at, host_->Now(), epochs_.examples_done())) return;
  if (v1::JobNote* const note = journal_.writer().Note()) rate_.FillNote(note);
  output_.AddRate(rate_, epochs_);
}

// Begins the next phase if this one is over.
void Job::Advance() {
  if (phases_.In(JobPhase::kPlacing) && shards_.AllHeld()) {
    epochs_.StartClock(host_->Now());
    if (!Apply(PhaseEvent::kPlaced)) return;
  }
  if (!phases_.In(JobPhase::kTraining)) return;
  // The barrier (ARCHITECTURE 4.8): what was granted has ended, nothing is under repair, every
  // shard is there.
  if (!source_->Complete()) return;
  if (!book_->BarrierReached(source_->Limit()) || !shards_.AllHeld()) return;
  if (!source_->has_callers()) {
    if (epochs_.EvaluationDue()) {
      if (!evaluation_hold_.Holds(host_)) Apply(PhaseEvent::kEvaluationDue);
      return;
    }
    if (epochs_.PassBarrier(AccountContext())) {
      source_->UpdateNewLimit();
      PersistWhole();  // the lines of these epochs stand in no note
      return;
    }
  }
  Apply(PhaseEvent::kTrained);
}

void Job::FinishEvaluation() {
  EvaluationSum sum;
  for (const ReadingRound::Closure& closure : reading_.closures()) sum.Add(closure.metrics);
  reading_.Clear();
  epochs_.FinishEvaluation(sum.Result(kind_.counts_only()), host_->Now());
  if (!Apply(PhaseEvent::kEvaluated)) return;
  ++revision_;
  host_->JobChanged(id_.uid);
}

// Values have changed under whoever was reading them: what was measured or written since is void.
void Job::AfterRollback(absl::string_view why) {
  SayNotReproducible(std::string(why));
  if (!phases_.After(PhaseEvent::kRolledBack)) return;
  Event("rollback", absl::StrCat(JobPhaseName(phases_.phase()), " begins again: ", why));
  epochs_.VoidEvaluation(phases_.In(JobPhase::kEvaluating), host_->Now());
  reading_.Void();
  report_.Void();
  Apply(PhaseEvent::kRolledBack);
}

void Job::BeginReport() {
  report_.Begin(FinalReport::Kind::kComplete, [this] {
    if (!claims_.Accept(source_->CompareUpdates(report_.answer().shards))) return;
    Apply(rounds_.on() ? PhaseEvent::kReported : PhaseEvent::kFinished);
  });
}

// ---------------------------------------------------------------- ends before the plan (20a)

bool Job::BeginSeal() {
  reading_.Clear();
  report_.Void();
  training_.Clear();
  placer_.ForgetRetries();
  mover_.End();
  if (!phases_.window_open())
    notices_.SendCloses();  // so that what has ended is in the ledgers that are saved
  if (!PersistWhole()) return false;
  // Workers drop everything of the job at once; servers first answer REFUSED, then report, then
  // drop.
  notices_.SendEnded(phases_.ending(), true, false);
  for (auto& [task, worker] : roster_.workers()) {
    worker.DropAll();
  }
  seal_.Begin();
  CheckSealed();
  return true;
}

void Job::CheckSealed() {
  if (!phases_.In(JobPhase::kSealing) || phases_.window_open())
    return;  // In the window it is not known who is gone.
  if (!seal_.IsComplete()) return;
  Apply(book_ && shards_.placed() ? PhaseEvent::kSealed : PhaseEvent::kFinished);
}

void Job::BeginSealedReport() {
  report_.Begin(FinalReport::Kind::kSealed, [this] {
    if (!rounds_.on() || !book_) return Finish();
    Apply(PhaseEvent::kReported);
  });
}

// From the seal on: a worker that went to another job in that second would have to come back.
bool Job::WantsSealedExport() const {
  return phases_.failing() && book_ && shards_.placed() && epochs_.succeeded() > 0;
}

// ---------------------------------------------------------------- the end

// Nothing is left but the weights of a failed job, and the files. That the weights are not exported
// is said before the last line of metrics.jsonl.
void Job::Finish() {
  const bool exports = phases_.After(PhaseEvent::kSealedExportDue) && WantsSealedExport() &&
                       sealed_export_.Begin(report_.answer(), plan_.server_bytes());
  Apply(exports ? PhaseEvent::kSealedExportDue : PhaseEvent::kFinished);
}

bool Job::BeginWriting() {
  export_.DropReceiver();
  times_.ended_ms = host_->WallMillis();
  times_.ended_at = host_->Now();
  closure_totals_.Close(source_->CountedEnds());
  epochs_.WriteEpochLines(AccountContext());
  output_.MakeResult();
  if (!PersistWhole()) return false;
  journal_.FlushLines();
  WriteFiles();
  return true;
}

// The files are on disk. What an ended job still answers is its status, its result and its final
// report.
void Job::End() {
  notices_.SendEnded(phases_.ending(), true, true);
  book_.reset();
  epochs_.ForgetWaiting();
  shards_.Clear();
  mover_.Forget();
  roster_.workers().clear();
  source_->Clear();
  output_.lines().Close();
  if (journal_.on()) {
    PersistWhole();
  } else if (absl::Status removed = host_->store().Remove(id_.uid); !removed.ok()) {
    host_->StoreFailed(removed);
  }
  report_.End();
}

}  // namespace evergrad::coordinator

#include "coordinator/jobs/job_life.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
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

// ---------------------------------------------------------------- calls from outside

void JobLife::BeginRun() {
  parts_.times.started_ms = parts_.host->WallMillis();
  parts_.times.started_at = parts_.host->Now();
  parts_.output.WriteJobFile();
}

void JobLife::Start() {
  if (parts_.phases.started()) return;
  BeginRun();
  Apply(PhaseEvent::kStarted);
}

void JobLife::Cancel() {
  if (parts_.phases.In(JobPhase::kSealedExporting))
    return parts_.sealed_export.GiveUp("the job was cancelled meanwhile");
  if (!parts_.phases.After(PhaseEvent::kCancelled)) return;
  Event("state", "cancel requested");
  if (!parts_.phases.started()) BeginRun();
  Apply(PhaseEvent::kCancelled);
}

void JobLife::Fail(v1::ErrorDetail cause, bool user) {
  const bool ends_it = parts_.phases.After(PhaseEvent::kFailed).has_value();
  if (!parts_.phases.TakeCause(std::move(cause), user)) return;
  if (!ends_it) {
    PersistWhole();
    return;
  }
  Event("state", absl::StrCat("the job fails: ", ErrorText(*parts_.phases.cause())));
  Apply(PhaseEvent::kFailed);
}

void JobLife::EndTurn() {
  if (parts_.turn.End()) Pump();
}

// ---------------------------------------------------------------- lives of the coordinator

absl::Status JobLife::Restore(const v1::JobSnapshot& snapshot, const StoredJob& stored,
                              std::string refusal) {
  EG_RETURN_IF_ERROR(parts_.journal.Read(
      snapshot, stored, [&] { return RestoreBook(stored.state); }, &refusal));
  SetStages();
  if (!refusal.empty()) parts_.news.AddRefusal(refusal);
  parts_.phases.OpenWindow();  // Nothing is granted or placed until Resume and CloseWindow.
  if (parts_.phases.active()) parts_.output.lines().Resume();
  return absl::OkStatus();
}

absl::Status JobLife::RestoreBook(const DurableState& state) {
  const ClosureBook::Options options = BookOptions();
  if (state.map.size() > options.shards) {
    return absl::InvalidArgumentError(
        absl::StrCat("the journal has more shards than the job's plan: shards=", state.map.size(),
                     " want=", options.shards));
  }
  parts_.book = std::make_unique<ClosureBook>(options, state);
  parts_.shards.Restore(*parts_.book);
  return absl::OkStatus();
}

void JobLife::Resume(Term term) {
  parts_.news.BeginLife(term);
  if (!parts_.phases.active()) return;
  parts_.roster.BeginLife();
  parts_.phases.OpenWindow();
  parts_.phases.SetRestored();
  BeginRate();
  if (parts_.book) {
    Record begun = parts_.book->BeginLife(term);
    parts_.source->BeginLife(&begun);
    parts_.source->UpdateNewLimit();
    if (!Persist(begun)) return;
    parts_.server_admission.AwaitOwners();
  }
  Event("restart", absl::StrCat("the coordinator restarted: term=", term.value(), ", ",
                                parts_.epochs.succeeded(), " closures had succeeded"));
}

void JobLife::BeginAnew(Term term) {
  if (!parts_.phases.active()) return;
  parts_.phases.OpenWindow();
  parts_.roster.workers().clear();
  parts_.roster.ForgetPauses();
  parts_.server_admission.DisconnectAll();
  parts_.reading.ReleaseAll();
  parts_.training.ForgetReleases();
  parts_.mover.Forget();  // The sessions of all servers end.
  if (parts_.book) Persist(parts_.book->BeginLife(term));
  Event("warning",
        absl::StrCat("a task has seen a later term, so the coordinator began a new term: term=",
                     term.value()));
}

void JobLife::CloseWindow() {
  if (!parts_.phases.CloseWindow()) return;
  if (parts_.book) parts_.book->CloseWindow();
  parts_.training.CloseWindow();
  EndTurn();
  parts_.server_admission.AwaitFromNowOn();
  if (parts_.phases.TakeRestored()) ResumePhase();
  Pump();
}

// Begins or continues the phase of a restored job, once the time in which its tasks register again
// has ended. Messages that the former life sent at the beginning of the phase are not repeated,
// except for the seal, because its answers are lost.
void JobLife::ResumePhase() {
  BeginRate();  // The time of the window is no training time.
  switch (parts_.phases.phase()) {
    case JobPhase::kDescribing: Describe(); break;
    case JobPhase::kSealing: end_.BeginSeal(); break;
    case JobPhase::kWriting: end_.WriteFiles(); break;
    default: break;
  }
}

// ---------------------------------------------------------------- phases

bool JobLife::Apply(PhaseEvent event) {
  const std::optional<JobPhase> next = parts_.phases.After(event);
  if (!next) return false;
  if (parts_.phases.In(JobPhase::kTraining)) SampleRate();
  const JobState before = parts_.phases.state();
  parts_.phases.Apply(event);
  SetStages();
  Touch();
  const JobState state = parts_.phases.state();
  if (state != before) Event("state", std::string(JobStateName(state)));
  return Enter(*next);
}

void JobLife::SetStages() {
  parts_.rounds.SetStage(StageOf(parts_.phases.phase()));
  parts_.exports.SetStage(ExportStageOf(parts_.phases.phase()));
}

bool JobLife::Enter(JobPhase phase) {
  switch (phase) {
    case JobPhase::kNone: break;
    case JobPhase::kDescribing:
      if (!PersistWhole()) return false;
      parts_.notices.SendInfo();
      Describe();
      break;
    case JobPhase::kPlacing:
      if (!PersistWhole()) return false;
      parts_.notices.SendInfo();
      Pump();
      break;
    case JobPhase::kTraining: BeginRate(); return PersistWhole();
    case JobPhase::kEvaluating:
      parts_.epochs.BeginEvaluation(parts_.host->Now());
      parts_.reading.Begin(v1::EVALUATE, parts_.plan->eval_closures(), MonoTime{0});
      break;
    case JobPhase::kExporting: parts_.reading.Begin(v1::EXPORT, 1, MonoTime{0}); break;
    case JobPhase::kReporting: end_.BeginReport(); break;
    case JobPhase::kSaving: TickCheckpoints(parts_.host->Now()); break;
    case JobPhase::kSealing: return end_.BeginSeal();
    case JobPhase::kSealedReporting: end_.BeginSealedReport(); break;
    case JobPhase::kSealedSaving: parts_.rounds.BeginRound(); break;
    case JobPhase::kSealedExporting:
      if (!parts_.phases.window_open()) parts_.sealed_export.Pump();
      break;
    case JobPhase::kWriting: return end_.BeginWriting();
    case JobPhase::kEnded: end_.End(); break;
  }
  return true;
}

// Describes the job from the YAML if possible. Otherwise a worker has to describe it.
void JobLife::Describe() {
  const std::optional<v1::DescribeResult> described = parts_.kind.Describe(parts_.id.spec);
  parts_.reading.Begin(v1::DESCRIBE, described ? 0 : 1, MonoTime{0});
  if (described) return OnDescribed(*described);
  Pump();
}

void JobLife::OnDescribed(const v1::DescribeResult& described) {
  JobPlan& plan = parts_.plan;
  if (const absl::Status built = plan.Build(described, parts_.placer.ServersLimit()); !built.ok()) {
    const bool user = BlameOf(built) == Blame::kUser;
    return Fail(MakeError(built, user ? "user" : "internal", "coordinator"), user);
  }
  for (int i = 0; i < std::min(described.warnings_size(), kDescribeWarningsMax); ++i)
    Event("warning", described.warnings(i));
  if (const absl::Status fits = plan.CheckServerBytes(); !fits.ok())
    return Fail(MakeError(fits, "user", "coordinator"), true);
  if (!parts_.journal.on()) plan.ForgetVariables();
  if (parts_.rounds.on() && parts_.id.spec.checkpoint.resume) return parts_.resume.Look();
  BeginPlan();
}

ClosureBook::Options JobLife::BookOptions() const {
  ClosureBook::Options options;
  options.closures = parts_.plan->closures();
  options.shards = parts_.shards.size();
  options.open_max = parts_.options.closures_open_max;
  return options;
}

void JobLife::BeginPlan() {
  parts_.book = std::make_unique<ClosureBook>(BookOptions(), DurableState{});
  Record begun = parts_.book->BeginLife(parts_.host->term());
  parts_.book->CloseWindow();
  parts_.epochs.BeginPlan();
  parts_.resume.Apply(&begun);
  parts_.source->UpdateNewLimit();
  Event("state", parts_.source->ReadyText(parts_.plan.described()));
  parts_.journal.writer().Add(begun);
  Apply(PhaseEvent::kPlanned);
}

void JobLife::Pump() {
  const JobPhases& phases = parts_.phases;
  if (in_pump_ || !phases.active() || phases.window_open()) return;
  in_pump_ = true;
  if (!grants_stopped()) {
    parts_.placer.Place();
    Advance();
    if (phases.In(JobPhase::kTraining)) parts_.source->Grant(granter_, parts_.roster.workers());
    // The calls above may have ended the job early.
    if (!grants_stopped() && phases.ReadingKind() != v1::WORK_KIND_UNSPECIFIED)
      parts_.reading.Grant();
    parts_.mover.Pump();
  }
  in_pump_ = false;
}

void JobLife::Advance() {
  if (parts_.phases.In(JobPhase::kPlacing) && parts_.shards.AllHeld()) {
    parts_.epochs.StartClock(parts_.host->Now());
    if (!Apply(PhaseEvent::kPlaced)) return;
  }
  if (!parts_.phases.In(JobPhase::kTraining)) return;
  // The barrier (ARCHITECTURE 4.8) is reached when all granted closures have ended, no shard is
  // under repair, and every shard has a server.
  ClosureSource& source = *parts_.source;
  if (!source.Complete()) return;
  if (!parts_.book->BarrierReached(source.Limit()) || !parts_.shards.AllHeld()) return;
  if (!source.has_callers()) {
    if (parts_.epochs.EvaluationDue()) {
      if (!evaluation_hold_.Holds(parts_.host)) Apply(PhaseEvent::kEvaluationDue);
      return;
    }
    if (parts_.epochs.PassBarrier(parts_.account_context())) {
      source.UpdateNewLimit();
      PersistWhole();  // Stores a snapshot, because no note has the lines of these epochs.
      return;
    }
  }
  Apply(PhaseEvent::kTrained);
}

// Time of repair and of waiting is excluded. If it counted as slow training, the shown remaining
// time would be much too long.
void JobLife::SampleRate() {
  TrainingRate& rate = parts_.rate;
  const std::uint64_t examples = parts_.epochs.examples_done();
  if (examples == rate.examples() && parts_.waits.TrainingPaused()) return BeginRate();
  if (!rate.Sample(parts_.times.started_at, parts_.host->Now(), examples)) return;
  if (v1::JobNote* const note = NoteIfJournaled()) rate.FillNote(note);
  parts_.output.AddRate(rate, parts_.epochs);
}

void JobLife::OnEvaluated() {
  EvaluationSum sum;
  for (const ReadingRound::Closure& closure : parts_.reading.closures()) sum.Add(closure.metrics);
  parts_.reading.Clear();
  parts_.epochs.FinishEvaluation(sum.Result(parts_.kind.counts_only()), parts_.host->Now());
  if (Apply(PhaseEvent::kEvaluated)) parts_.news.TellChange();
}

void JobLife::OnExportEnded() {
  Apply(parts_.phases.In(JobPhase::kSealedExporting) ? PhaseEvent::kFinished
                                                     : PhaseEvent::kExported);
}

// Voids measurements and files that were made from the values before the rollback.
void JobLife::AfterRollback(absl::string_view why) {
  const JobPhases& phases = parts_.phases;
  SayNotReproducible(std::string(why));
  if (!phases.After(PhaseEvent::kRolledBack)) return;
  Event("rollback", absl::StrCat(JobPhaseName(phases.phase()), " begins again: ", why));
  parts_.epochs.VoidEvaluation(phases.In(JobPhase::kEvaluating), parts_.host->Now());
  parts_.reading.Void();
  parts_.report.Void();
  Apply(PhaseEvent::kRolledBack);
}

void JobLife::TickCheckpoints(MonoTime now) {
  if (parts_.phases.window_open()) return;
  const bool hurry = parts_.phases.In(JobPhase::kTraining) && parts_.source->WantsRound();
  parts_.rounds.Tick(now, hurry);
  if (hurry) parts_.source->OnRoundTick();
}

}  // namespace evergrad::coordinator

// What follows what: training up to a barrier, evaluation, export, the final report; and the ends
// before the plan.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/job_error.h"

namespace evergrad::coordinator {

// Goes on to the next phase if this one is over.
void Job::Advance() {
  if (phase_ == Phase::kPlacing && shards_.AllHeld()) {
    epochs_.StartClock(host_->Now());
    SetState(JobState::kRunning);
    SetPhase(Phase::kTraining);
    if (!PersistWhole()) return;
  }
  if (phase_ != Phase::kTraining) return;
  // The barrier (ARCHITECTURE 4.8): what was granted has ended, nothing is under repair, every
  // shard is there.
  if (!source_->Complete()) return;
  if (!book_->BarrierReached(source_->Limit()) || !shards_.AllHeld()) return;
  if (source_->has_callers()) return BeginReading(Phase::kExporting, 1);
  if (epochs_.EvaluationDue()) return BeginEvaluation();
  if (epochs_.PassBarrier(AccountContext())) {
    source_->UpdateNewLimit();
    PersistWhole();  // the lines of these epochs stand in no note
    return;
  }
  BeginReading(Phase::kExporting, 1);
}

void Job::BeginEvaluation() {
  const MonoTime now = host_->Now();
  if (now < evaluation_held_until_) return;
  if (const fault::Hit hit = host_->failpoints().At("coordinator.evaluate")) {
    evaluation_held_until_ =
        now + std::chrono::milliseconds(hit.action == fault::Action::kDelay ? hit.delay_ms : 50);
    return;
  }
  epochs_.BeginEvaluation(now);
  BeginReading(Phase::kEvaluating, plan_->eval_closures());
}

void Job::FinishEvaluation() {
  EvaluationSum sum;
  for (const ReadingRound::Closure& closure : reading_.closures()) sum.Add(closure.metrics);
  reading_.Clear();
  epochs_.FinishEvaluation(sum.Result(kind_.counts_only()), host_->Now());
  SetPhase(Phase::kTraining);  // Advance goes on from here.
  if (!PersistWhole()) return;
  ++revision_;
  host_->JobChanged(id_.uid);
}

void Job::BeginReport() {
  SetPhase(Phase::kReporting);
  report_.Begin(FinalReport::Kind::kComplete, [this] {
    if (!claims_.Accept(source_->CompareUpdates(report_.answer().shards))) return;
    ending_ = JobState::kSucceeded;
    if (!rounds_.on()) return FinishJob();
    SetPhase(Phase::kSaving);
    TickCheckpoints(host_->Now());
  });
}

// ---------------------------------------------------------------- ends before the plan (20a)

void Job::Fail(v1::ErrorDetail cause, bool user) {
  if (!active() || phase_ >= Phase::kWriting) return;
  if (phase_ >= Phase::kSealing) {
    // A user's error beats a transport error that it caused.
    if (ending_ != JobState::kFailed || !user || cause_is_users_) return;
    first_cause_ = std::move(cause);
    cause_is_users_ = true;
    PersistWhole();
    return;
  }
  Event("state", absl::StrCat("fails: ", ErrorText(cause)));
  first_cause_ = std::move(cause);
  cause_is_users_ = user;
  BeginSeal(JobState::kFailed);
}

void Job::BeginSeal(JobState ending) {
  ending_ = ending;
  reading_.Clear();
  report_.Void();
  delayed_releases_.clear();
  placer_.ForgetRetries();
  deferred_.clear();
  mover_.End();
  SendCloses();  // so that what has ended is in the ledgers that are saved
  SetPhase(Phase::kSealing);
  if (!PersistWhole()) return;
  // Workers drop everything of the job at once; servers first answer REFUSED, then report, then
  // drop.
  SendEnded(true, false);
  for (auto& [task, worker] : workers_) {
    worker.DropAll();
  }
  seal_.Begin();
  CheckSealed();
}

void Job::CheckSealed() {
  if (phase_ != Phase::kSealing || window_open_)
    return;  // In the window it is not known who is gone.
  if (!seal_.IsComplete()) return;
  if (!book_ || !shards_.placed()) {
    FinishJob();
    return;
  }
  SetPhase(Phase::kSealedReporting);
  report_.Begin(FinalReport::Kind::kSealed, [this] {
    if (!rounds_.on() || !book_) return FinishJob();
    SetPhase(Phase::kSealedSaving);
    rounds_.BeginRound();
  });
}

// From the seal on: a worker that went to another job in that second would have to come back.
bool Job::WantsSealedExport() const {
  return ending_ == JobState::kFailed && phase_ >= Phase::kSealing &&
         phase_ <= Phase::kSealedExporting && book_ && shards_.placed() && epochs_.succeeded() > 0;
}

bool Job::BeginSealedExport() {
  if (!WantsSealedExport() || !sealed_export_.Begin(report_.answer(), server_bytes_)) return false;
  SetPhase(Phase::kSealedExporting);
  sealed_export_.Pump();
  return true;
}

// ---------------------------------------------------------------- the end

void Job::FinishJob() {
  if ((phase_ == Phase::kSealedReporting || phase_ == Phase::kSealedSaving) && BeginSealedExport())
    return;
  export_.DropReceiver();
  SetPhase(Phase::kWriting);
  times_.ended_ms = host_->WallMillis();
  times_.ended_at = host_->Now();
  closure_totals_.Close(source_->CountedEnds());
  epochs_.WriteEpochLines(AccountContext());
  output_.MakeResult();
  if (!PersistWhole()) return;
  FlushLines();
  WriteFiles();
}

void Job::OnWritten() {
  SendEnded(true, true);
  phase_ = Phase::kEnded;
  // What an ended job still answers is its status, its result and its final report.
  book_.reset();
  epochs_.ForgetWaiting();
  shards_.Clear();
  mover_.Forget();
  workers_.clear();
  source_->Clear();
  SetState(ending_);
  output_.lines().Close();
  if (journals()) {
    PersistWhole();
  } else if (absl::Status removed = host_->store().Remove(id_.uid); !removed.ok()) {
    host_->StoreFailed(removed);
  }
  report_.End();
}

void Job::SendEnded(bool workers, bool servers) {
  v1::CoordinatorMessage message;
  message.mutable_job_ended()->set_job_uid(id_.uid.value());
  message.mutable_job_ended()->set_state(std::string(JobStateName(ending_)));
  Broadcast(message, workers, servers);
}

}  // namespace evergrad::coordinator

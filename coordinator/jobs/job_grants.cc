// Who gets which work, and what comes back of it.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/evaluation.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/job_error.h"
#include "coordinator/jobs/task_answers.h"
#include "coordinator/jobs/training_rate.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

// A worker's report is bounded before it is kept.
absl::Status CheckSizes(const v1::Done& done) {
  if (done.metrics().step_records_size() > static_cast<int>(kUpdatesPerClosureMax) ||
      done.metrics().sums_size() > 64) {
    return absl::InvalidArgumentError(absl::StrCat(
        "metrics of a closure too large: step_records=", done.metrics().step_records_size(),
        " sums=", done.metrics().sums_size()));
  }
  for (const v1::NamedSum& sum : done.metrics().sums()) {
    if (sum.counts_size() > kMetricCountsMax)
      return absl::InvalidArgumentError(absl::StrCat(
          "metrics of a closure too large: counts=", sum.counts_size(), " max=", kMetricCountsMax));
  }
  if (done.result().size() > client::kResultBytesMax)
    return absl::InvalidArgumentError(
        absl::StrCat("result of a closure too large: bytes=", done.result().size(),
                     " max=", client::kResultBytesMax));
  return absl::OkStatus();
}

}  // namespace

void Job::Pump() {
  if (in_pump_ || !active() || phases_.window_open()) return;
  in_pump_ = true;
  if (!grants_stopped()) {
    placer_.Place();
    Advance();
    if (phases_.In(JobPhase::kTraining)) source_->Grant(granter_, roster_.workers());
    if (phases_.ReadingKind() != v1::WORK_KIND_UNSPECIFIED) reading_.Grant();
    mover_.Pump();
  }
  in_pump_ = false;
}

// ---------------------------------------------------------------- beside other jobs

void Job::CallBack(TaskId task) {
  Worker* worker = FindWorker(task);
  if (worker == nullptr || std::exchange(worker->called_back, true)) return;
  roster_.RecallAll(worker);
}

void Job::ReleaseWorker(TaskId task) {
  EndTurn();  // what it has said is answered first
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

void Job::SayNotReproducible(const std::string& why) {
  if (!id_.spec.strategy.deterministic) return;
  Event("warning", absl::StrCat("deterministic: ", why,
                                "; updates that had reached only some of the shards are completed "
                                "from values that were read later, so the results "
                                "may differ in bits from those of an undisturbed run"));
}

absl::Status Job::OnDone(TaskId task, const v1::Done& done) {
  EG_RETURN_IF_ERROR(CheckSizes(done));
  if (done.kind() == v1::TRAIN) EG_RETURN_IF_ERROR(source_->Check(done));
  Worker* worker = FindWorker(task);
  if (done.kind() == v1::TRAIN) {
    training_.OnDone(worker, done, phases_.window_open());
  } else {
    OnReadingDone(worker, done);
  }
  return absl::OkStatus();
}

void Job::EndTurn() {
  if (turn_.End()) Pump();
}

void Job::OnReadingDone(Worker* worker, const v1::Done& done) {
  if (worker == nullptr) return;
  const Attempt attempt = client::FromProto<Attempt>(done.attempt());
  turn_.Open();
  if (worker->Drop(attempt)) worker->advanced_at = host_->Now();
  roster_.SetFit(*worker);
  const bool accepted = active() && reading_.Accept(*worker, done);
  turn_.Add(worker->task, ClosureId(done.closure()), attempt, !accepted);
  if (!accepted) return;
  deaths_.OnWorkerProgress(worker->identity);
  Touch();
  switch (done.kind()) {
    case v1::DESCRIBE:
      deaths_.OnDescribed();
      OnDescribed(done.describe());
      break;
    case v1::EVALUATE:
      deaths_.OnLeft(DeathLimit::Again::kEvaluation, reading_.left());
      if (reading_.left() == 0) FinishEvaluation();
      break;
    default:
      deaths_.OnLeft(DeathLimit::Again::kExport, 0);
      export_.OnExported(done.export_(), worker->identity);
      break;
  }
}

void Job::OnFailed(TaskId task, const v1::Failed& failed) {
  Worker* worker = FindWorker(task);
  if (worker == nullptr) return;
  const Attempt attempt = client::FromProto<Attempt>(failed.attempt());
  if (worker->Drop(attempt)) worker->advanced_at = host_->Now();
  if (phases_.In(JobPhase::kSealedExporting) && failed.kind() == v1::EXPORT)
    return sealed_export_.OnFailed(task, failed);
  if (grants_stopped() && !(phases_.ending() == JobState::kFailed && failed.user_error() &&
                            failed.lack() == v1::NO_LACK))
    return;
  const bool elsewhere =
      failed.lack() != v1::NO_LACK && roster_.SetAside(*worker, failed, source_->has_callers());
  v1::ErrorDetail cause = failed.cause();
  if (cause.origin_text().empty()) cause.set_origin_text(absl::StrCat("worker/", worker->identity));
  CleanCause(&cause);
  if (failed.kind() == v1::TRAIN)
    training_.OnFailed(*worker, failed, elsewhere, std::move(cause));
  else
    reading_.OnFailed(*worker, failed, elsewhere, std::move(cause));
}

void Job::OnDropped(TaskId task, const v1::AttemptDropped& dropped) {
  Worker* worker = FindWorker(task);
  if (worker == nullptr) return;
  const Attempt attempt = client::FromProto<Attempt>(dropped.attempt());
  bool handed_back = worker->leaving;
  if (const auto held = worker->held.find(attempt); held != worker->held.end()) {
    handed_back |= held->second.recalled;
    worker->Drop(attempt);
    worker->advanced_at = host_->Now();
  }
  if (!reading_.OnDropped(task, dropped, handed_back))
    return training_.OnDropped(*worker, dropped, handed_back);
  Pump();
}

}  // namespace evergrad::coordinator

#include "coordinator/jobs/worker_reports.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/evaluation.h"
#include "coordinator/jobs/job_error.h"

namespace evergrad::coordinator {
namespace {

// Checks the sizes in a worker's report, before the job keeps it.
absl::Status CheckSizes(const v1::Done& done) {
  if (done.metrics().step_records_size() > static_cast<int>(kUpdatesPerClosureMax) ||
      done.metrics().sums_size() > 64) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the metrics of a closure are too large: step_records=", done.metrics().step_records_size(),
        " sums=", done.metrics().sums_size()));
  }
  for (const v1::NamedSum& sum : done.metrics().sums()) {
    if (sum.counts_size() > kMetricCountsMax)
      return absl::InvalidArgumentError(
          absl::StrCat("the metrics of a closure are too large: counts=", sum.counts_size(),
                       " max=", kMetricCountsMax));
  }
  if (done.result().size() > client::kResultBytesMax)
    return absl::InvalidArgumentError(
        absl::StrCat("the result of a closure is too large: bytes=", done.result().size(),
                     " max=", client::kResultBytesMax));
  return absl::OkStatus();
}

}  // namespace

absl::Status WorkerReports::OnDone(TaskId task, const v1::Done& done) {
  EG_RETURN_IF_ERROR(CheckSizes(done));
  if (done.kind() == v1::TRAIN) EG_RETURN_IF_ERROR((*parts_.source)->Check(done));
  JobWorker* const worker = parts_.roster->Find(task);
  if (done.kind() == v1::TRAIN) {
    parts_.training->OnDone(worker, done, parts_.phases->window_open());
  } else if (worker != nullptr) {
    OnReadingDone(*worker, done);
  }
  return absl::OkStatus();
}

void WorkerReports::OnReadingDone(JobWorker& worker, const v1::Done& done) {
  const Attempt attempt = client::FromProto<Attempt>(done.attempt());
  parts_.turn->Open();
  if (worker.Drop(attempt)) worker.advanced_at = host_->Now();
  parts_.roster->SetFit(worker);
  const bool accepted = parts_.phases->active() && parts_.reading->Accept(worker, done);
  parts_.turn->Add(worker.task, ClosureId(done.closure()), attempt, !accepted);
  if (!accepted) return;
  parts_.deaths->OnWorkerProgress(worker.identity);
  job_.Touch();
  switch (done.kind()) {
    case v1::DESCRIBE: parts_.deaths->OnDescribed(); return hooks_.described(done.describe());
    case v1::EVALUATE:
      parts_.deaths->OnLeft(DeathLimit::Again::kEvaluation, parts_.reading->left());
      if (parts_.reading->left() == 0) hooks_.evaluated();
      return;
    default:
      parts_.deaths->OnLeft(DeathLimit::Again::kExport, 0);
      return hooks_.exported(done.export_(), worker.identity);
  }
}

void WorkerReports::OnFailed(TaskId task, const v1::Failed& failed) {
  JobWorker* const worker = parts_.roster->Find(task);
  if (worker == nullptr) return;
  const JobPhases& phases = *parts_.phases;
  const Attempt attempt = client::FromProto<Attempt>(failed.attempt());
  if (worker->Drop(attempt)) worker->advanced_at = host_->Now();
  if (phases.In(JobPhase::kSealedExporting) && failed.kind() == v1::EXPORT)
    return parts_.sealed_export->OnFailed(task, failed);
  // A user's error may be the cause of the machine's error that already ends the job, so it is
  // still accepted.
  if (phases.grants_stopped() && !(phases.ending() == JobState::kFailed && failed.user_error() &&
                                   failed.lack() == v1::NO_LACK))
    return;
  const bool elsewhere = failed.lack() != v1::NO_LACK &&
                         parts_.roster->SetAside(*worker, failed, (*parts_.source)->has_callers());
  v1::ErrorDetail cause = failed.cause();
  if (cause.origin_text().empty()) cause.set_origin_text(absl::StrCat("worker/", worker->identity));
  CleanCause(&cause);
  if (failed.kind() == v1::TRAIN)
    parts_.training->OnFailed(*worker, failed, elsewhere, std::move(cause));
  else
    parts_.reading->OnFailed(*worker, failed, elsewhere, std::move(cause));
}

void WorkerReports::OnDropped(TaskId task, const v1::AttemptDropped& dropped) {
  JobWorker* const worker = parts_.roster->Find(task);
  if (worker == nullptr) return;
  const Attempt attempt = client::FromProto<Attempt>(dropped.attempt());
  bool asked = worker->leaving;
  if (const auto held = worker->held.find(attempt); held != worker->held.end()) {
    asked |= held->second.recalled;
    worker->Drop(attempt);
    worker->advanced_at = host_->Now();
  }
  if (!parts_.reading->OnDropped(task, dropped, asked))
    return parts_.training->OnDropped(*worker, dropped, asked);
  job_.Pump();
}

}  // namespace evergrad::coordinator

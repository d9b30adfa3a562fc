// The job's side of the export of a failed job's weights (sealed_export.h).
#include "absl/strings/str_cat.h"
#include "coordinator/jobs/job.h"

namespace evergrad::coordinator {

// From the seal on: a worker that went to another job in that second would have to come back.
bool Job::WantsSealedExport() const {
  return ending_ == JobState::kFailed && phase_ >= Phase::kSealing &&
         phase_ <= Phase::kSealedExporting && book_ && shards_.placed() && epochs_.succeeded() > 0;
}

bool Job::BeginSealedExport() {
  if (!WantsSealedExport()) return false;
  if (const auto& report = report_.answer(); !report.complete) {
    SayNotExported(absl::StrCat("only ", report.shards.size(), " of ", shards_.size(),
                                " shards were left at their servers"));
    return false;
  }
  sealed_export_.Begin(host_->Now(), book_->durable().version, server_bytes_);
  BeginReading(Phase::kSealedExporting, 1);
  PumpSealedExport();
  return true;
}

void Job::PumpSealedExport() {
  if (phase_ != Phase::kSealedExporting || window_open_ || reading_.empty()) return;
  const MonoTime now = host_->Now();
  std::vector<TaskId> usable;
  for (const auto& [task, worker] : workers_) {
    if (Usable(worker, now)) usable.push_back(task);
  }
  const SealedExport::Action action =
      sealed_export_.Next(now, book_->durable().version, usable, &reading_);
  if (action.gave_up) return GiveUpSealedExport(*action.gave_up);
  if (action.closure == nullptr) return;
  // The worker was told that the job has ended.
  v1::CoordinatorMessage message;
  FillJobInfo(message.mutable_job());
  host_->Send(action.worker, message);
  FillMap(message.mutable_map());
  host_->Send(action.worker, message);
  action.closure->attempt = book_->NextAttempt();
  action.closure->worker = action.worker;
  SendGrant(*FindWorker(action.worker), action.closure->number, action.closure->attempt, v1::EXPORT,
            true, {});
  Touch();
}

void Job::SealedExportFailed(ReadingRound::Closure* closure, const v1::Failed& failed) {
  if (const auto gave_up = sealed_export_.OnFailed(host_->Now(), failed, closure))
    return GiveUpSealedExport(*gave_up);
  PumpSealedExport();
}

void Job::GiveUpSealedExport(absl::string_view why) {
  SayNotExported(why);
  VoidReading();
  FinishJob();
}

void Job::SayNotExported(absl::string_view why) {
  Event("warning", SealedExport::NotExportedText(why, rounds_.status()));
}

}  // namespace evergrad::coordinator

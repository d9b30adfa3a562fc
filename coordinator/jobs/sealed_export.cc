#include "coordinator/jobs/sealed_export.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/job_error.h"

namespace evergrad::coordinator {
namespace {

// The time limit is kExportMax plus one second for each kExportBytesPerSecond bytes of variables,
// which is the speed of a slow disk.
constexpr std::chrono::seconds kExportMax{60};
constexpr std::uint64_t kExportBytesPerSecond = 16ull << 20;
constexpr std::uint32_t kMachineErrorsMax = 3;
constexpr std::size_t kWhyBytesMax = 500;

}  // namespace

bool SealedExport::Begin(const ShardQueries::Answer& report, std::uint64_t bytes) {
  if (!report.complete) {
    SayNotExported(absl::StrCat("only ", report.shards.size(), " of ", shards_.size(),
                                " shards were left at their servers"));
    return false;
  }
  const MonoTime now = host_->Now();
  begun_ = true;
  version_ = book_->durable().version;
  worker_by_ = now + options_.seal_timeout;
  by_ = now + kExportMax + std::chrono::seconds(bytes / kExportBytesPerSecond);
  reading_.Begin(v1::EXPORT, 1, MonoTime{0});
  return true;
}

std::optional<std::string> SealedExport::ReasonToGiveUp(MonoTime now) const {
  if (book_->durable().version != version_) return "a server lost its shards during the export";
  if (now >= by_) return "the export took too long";
  return std::nullopt;
}

JobWorker* SealedExport::FindWorker(MonoTime now) {
  for (auto& [task, worker] : roster_.workers()) {
    if (roster_.Usable(worker, now) && !refused_by_.contains(task)) return &worker;
  }
  return nullptr;
}

void SealedExport::Pump() {
  if (!begun_ || reading_.empty()) return;
  const MonoTime now = host_->Now();
  if (const auto reason = ReasonToGiveUp(now)) return GiveUp(*reason);
  ReadingRound::Closure* const closure = reading_.Waiting(now);
  if (closure == nullptr) return;
  if (JobWorker* const worker = FindWorker(now)) {
    hooks_.send_job(worker->task);
    reading_.GrantTo(*worker, closure);
  } else if (now >= worker_by_) {
    GiveUp(why_.empty() ? "no worker was left to write the weights" : why_);
  }
}

void SealedExport::OnFailed(TaskId worker, const v1::Failed& failed) {
  ReadingRound::Closure* const closure =
      reading_.HeldBy(worker, failed.closure(), client::FromProto<Attempt>(failed.attempt()));
  if (closure == nullptr) return;
  v1::ErrorDetail cause = failed.cause();
  CleanCause(&cause);
  why_ = cause.message().substr(0, kWhyBytesMax);
  if (failed.user_error() || failed.lack() != v1::NO_LACK) {
    refused_by_.insert(worker);
  } else if (++closure->failures >= kMachineErrorsMax) {
    return GiveUp(why_);
  }
  closure->attempt = Attempt{};
  closure->not_before = host_->Now() + options_.RetryDelay(closure->failures);
  Pump();
}

void SealedExport::GiveUp(absl::string_view why) {
  SayNotExported(why);
  begun_ = false;
  reading_.Void();
  hooks_.over();
}

void SealedExport::SayNotExported(absl::string_view why) {
  job_.Event("warning", absl::StrCat("the weights of the failed job were not exported: ", why, "; ",
                                     checkpoint_.number() == 0
                                         ? std::string("the job has no checkpoint either")
                                         : absl::StrCat("checkpoint ", checkpoint_.number(),
                                                        " has them: psctl checkpoint export ",
                                                        checkpoint_.uri(), " --to weights.npz")));
}

}  // namespace evergrad::coordinator

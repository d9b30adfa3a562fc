// The weights of a job that has failed. Its shards are sealed and saved by now, and still there: a
// worker that is left writes them as it would at a job's good end. That is a service to the user,
// never part of how the job ends: it has a bound of time, its failure is an event, and what the job
// failed of stays what it was. Where nobody writes them, the event names the checkpoint and the
// command that makes them of it.
#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/job_error.h"

namespace evergrad::coordinator {
namespace {

constexpr std::chrono::seconds kExportMax{60};                // and
constexpr std::uint64_t kExportBytesPerSecond = 16ull << 20;  // of the variables: a slow disk's
constexpr std::uint32_t kMachineErrorsMax = 3;
constexpr std::size_t kWhyBytesMax = 500;

}  // namespace

// While it is sealed and saved, too: a worker that went to another job in that second would have to
// come back.
bool Job::WantsSealedExport() const {
  return ending_ == JobState::kFailed && phase_ >= Phase::kSealing &&
         phase_ <= Phase::kSealedExporting && book_ && shards_.placed() && epochs_.succeeded() > 0;
}

bool Job::BeginSealedExport() {
  if (!WantsSealedExport()) return false;
  if (!final_.complete) {
    SayNotExported(absl::StrCat("only ", final_.shards.size(), " of ", shards_.size(),
                                " shards were left at their servers"));
    return false;
  }
  const MonoTime now = host_->Now();
  sealed_export_ = {};
  sealed_export_.version = book_->durable().version;
  sealed_export_.worker_by = now + options_.seal_timeout;
  sealed_export_.by =
      now + kExportMax + std::chrono::seconds(server_bytes_ / kExportBytesPerSecond);
  BeginReading(Phase::kSealedExporting, 1);
  PumpSealedExport();
  return true;
}

void Job::PumpSealedExport() {
  if (phase_ != Phase::kSealedExporting || window_open_ || reading_.empty()) return;
  const MonoTime now = host_->Now();
  if (book_->durable().version != sealed_export_.version)
    return GiveUpSealedExport("a server lost its shards meanwhile");
  if (now >= sealed_export_.by) return GiveUpSealedExport("it took too long");
  ReadingRound::Closure* const reading = reading_.Waiting(now);
  if (reading == nullptr) return;
  Worker* best = nullptr;
  for (auto& [task, worker] : workers_) {
    if (best == nullptr && Usable(worker, now) && sealed_export_.refused_by.count(task) == 0)
      best = &worker;
  }
  if (best == nullptr) {
    if (now < sealed_export_.worker_by) return;
    return GiveUpSealedExport(sealed_export_.why.empty() ? "no worker was left to write them"
                                                         : sealed_export_.why);
  }
  // It was told that the job has ended.
  v1::CoordinatorMessage message;
  FillJobInfo(message.mutable_job());
  host_->Send(best->task, message);
  FillMap(message.mutable_map());
  host_->Send(best->task, message);
  reading->attempt = book_->NextAttempt();
  reading->worker = best->task;
  SendGrant(*best, reading->number, reading->attempt, v1::EXPORT, true, {});
  Touch();
}

// Another worker may do better: each that finds an error of its own making is asked once.
void Job::SealedExportFailed(ReadingRound::Closure* reading, const v1::Failed& failed) {
  v1::ErrorDetail cause = failed.cause();
  CleanCause(&cause);
  sealed_export_.why = cause.message().substr(0, kWhyBytesMax);
  if (failed.user_error() || failed.lack() != v1::NO_LACK) {
    sealed_export_.refused_by.insert(reading->worker);
  } else if (++reading->failures >= kMachineErrorsMax) {
    return GiveUpSealedExport(sealed_export_.why);
  }
  reading->attempt = Attempt{};
  reading->not_before = host_->Now() + options_.RetryDelay(reading->failures);
  PumpSealedExport();
}

void Job::GiveUpSealedExport(absl::string_view why) {
  SayNotExported(why);
  VoidReading();
  FinishJob();
}

void Job::SayNotExported(absl::string_view why) {
  Event("warning", absl::StrCat("the weights of the failed job were not exported: ", why, "; ",
                                rounds_.status().number() == 0
                                    ? std::string("the job has no checkpoint either")
                                    : absl::StrCat("checkpoint ", rounds_.status().number(),
                                                   " has them: psctl checkpoint export ",
                                                   rounds_.status().uri(), " --to weights.npz")));
}

}  // namespace evergrad::coordinator

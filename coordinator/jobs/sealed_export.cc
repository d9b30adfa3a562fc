#include "coordinator/jobs/sealed_export.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "coordinator/jobs/job_error.h"

namespace evergrad::coordinator {
namespace {

// The time limit is the sum of both: so long, and so many bytes of variables for each second more,
// which is the speed of a slow disk.
constexpr std::chrono::seconds kExportMax{60};
constexpr std::uint64_t kExportBytesPerSecond = 16ull << 20;
constexpr std::uint32_t kMachineErrorsMax = 3;
constexpr std::size_t kWhyBytesMax = 500;

}  // namespace

void SealedExport::Begin(MonoTime now, MapVersion version, std::uint64_t bytes) {
  version_ = version;
  worker_by_ = now + options_.seal_timeout;
  by_ = now + kExportMax + std::chrono::seconds(bytes / kExportBytesPerSecond);
  refused_by_.clear();
  why_.clear();
}

SealedExport::Action SealedExport::Next(MonoTime now, MapVersion version,
                                        const std::vector<TaskId>& usable, ReadingRound* reading) {
  if (version != version_) return {.gave_up = "a server lost its shards meanwhile"};
  if (now >= by_) return {.gave_up = "it took too long"};
  ReadingRound::Closure* const closure = reading->Waiting(now);
  if (closure == nullptr) return {};
  const auto worker = std::find_if(usable.begin(), usable.end(),
                                   [&](TaskId task) { return !refused_by_.contains(task); });
  if (worker != usable.end()) return {.closure = closure, .worker = *worker};
  if (now < worker_by_) return {};
  return {.gave_up = why_.empty() ? "no worker was left to write them" : why_};
}

std::optional<std::string> SealedExport::OnFailed(MonoTime now, const v1::Failed& failed,
                                                  ReadingRound::Closure* closure) {
  v1::ErrorDetail cause = failed.cause();
  CleanCause(&cause);
  why_ = cause.message().substr(0, kWhyBytesMax);
  if (failed.user_error() || failed.lack() != v1::NO_LACK) {
    refused_by_.insert(closure->worker);
  } else if (++closure->failures >= kMachineErrorsMax) {
    return why_;
  }
  closure->attempt = Attempt{};
  closure->not_before = now + options_.RetryDelay(closure->failures);
  return std::nullopt;
}

std::string SealedExport::NotExportedText(absl::string_view why,
                                          const v1::CheckpointStatus& checkpoint) {
  return absl::StrCat(
      "the weights of the failed job were not exported: ", why, "; ",
      checkpoint.number() == 0
          ? std::string("the job has no checkpoint either")
          : absl::StrCat("checkpoint ", checkpoint.number(), " has them: psctl checkpoint export ",
                         checkpoint.uri(), " --to weights.npz"));
}

}  // namespace evergrad::coordinator

#include "coordinator/service/run_copies.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace evergrad::coordinator {

RunCopies::RunCopies(ServiceParts parts, Options options, runtime::Executor* copies,
                     fs::FileSystem* file_system, metrics::Registry* registry)
    : parts_(parts),
      options_(std::move(options)),
      copies_(copies),
      copy_(options_.target, file_system),
      failures_(registry->GetCounter("evergrad_coordinator_run_copy_failures_total",
                                     "Attempts to copy a runs folder to --runs-copy that failed")),
      files_(registry->GetCounter("evergrad_coordinator_run_copy_files_total",
                                  "Files of runs that were copied to --runs-copy")) {}

void RunCopies::Tick() {
  if (options_.target.empty() || busy_) return;
  ForgetDeleted();
  const MonoTime now = parts_.clock->Now();
  const std::optional<Folder> next = Next(now);
  if (!next) return;
  busy_ = true;
  tried_[next->uid] = now;
  copies_->Post([this, folder = *next] {
    auto result = copy_.Copy(folder.path, folder.ended);
    if (folder.ended && result.ok()) copy_.Forget(folder.path);
    parts_.control->Post([this, folder, result = std::move(result)] { OnCopied(folder, result); });
  });
}

std::optional<RunCopies::Folder> RunCopies::Next(MonoTime now) const {
  for (const auto& [uid, job] : parts_.jobs->all()) {
    if (done_.contains(uid)) continue;
    const bool running = parts_.jobs->Running(uid) != nullptr;
    if (!running && !job->ended()) continue;  // a queued job has no folder yet
    const auto tried = tried_.find(uid);
    // The first copy after the end does not wait, unless the last attempt failed.
    const bool waits = running || warned_.contains(uid);
    if (waits && tried != tried_.end() && now - tried->second < options_.every) continue;
    return Folder{uid, job->runs_folder(), job->ended()};
  }
  return std::nullopt;
}

void RunCopies::ForgetDeleted() {
  const auto gone = [this](JobUid uid) { return parts_.jobs->Get(uid) == nullptr; };
  std::erase_if(done_, gone);
  std::erase_if(warned_, gone);
  std::erase_if(tried_, [&](const auto& one) { return gone(one.first); });
}

void RunCopies::OnCopied(const Folder& folder, const absl::StatusOr<std::size_t>& result) {
  busy_ = false;
  Job* const job = parts_.jobs->Get(folder.uid);
  if (job == nullptr) copies_->Post([this, folder] { copy_.Forget(folder.path); });
  if (result.ok()) {
    files_.Add(*result);
    if (warned_.erase(folder.uid) > 0 && job != nullptr)
      job->Tell(absl::StrCat("copying the runs folder works again: target=", options_.target));
    if (folder.ended) {
      done_.insert(folder.uid);
      tried_.erase(folder.uid);
      parts_.logger->Info(
          absl::StrCat("the runs folder is copied: job_uid=", JobUidString(folder.uid),
                       " copy=", copy_.UriOf(folder.path)));
    }
    return;
  }
  failures_.Add();
  const std::string text =
      absl::StrCat("cannot copy the runs folder; the next attempt is in ",
                   options_.every.count() / 1000, " s: ", result.status().message());
  if (!warned_.insert(folder.uid).second) return;
  parts_.logger->Warning(absl::StrCat(text, " job_uid=", JobUidString(folder.uid)));
  if (job != nullptr) job->Warn(text);
}

}  // namespace evergrad::coordinator

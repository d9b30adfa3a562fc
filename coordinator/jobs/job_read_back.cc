// Before a manifest is written, the coordinator reads back the files that it will name
// (coordinator/checkpoints/read_back.h).
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/checkpoints/read_back.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/job_error.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kSha256Bytes = 32;

}  // namespace

// Step by step on the file thread, so that lines of metrics.jsonl and other jobs' files are written
// in between; then the manifest is saved.
void Job::ReadBackAndSave(v1::Manifest manifest, std::optional<std::uint64_t> last_of) {
  manifest_writing_ = true;
  ReadBack::Options options;
  options.whole = last_of.has_value();
  for (const std::string& file : manifest_files_)
    options.read_before.insert(file.substr(0, file.size() - std::min(file.size(), kSha256Bytes)));
  read_back_ = {0, manifest.shards_size()};
  StepReadBack(
      std::make_shared<ReadBack>(CheckpointFolder(), std::move(manifest), std::move(options)),
      last_of);
}

// `reading` is shared with the file thread, which alone uses it until its step has ended.
void Job::StepReadBack(std::shared_ptr<ReadBack> reading, std::optional<std::uint64_t> last_of) {
  fs::FileSystem* const disk = &host_->file_system();
  std::weak_ptr<bool> alive = alive_;
  host_->OnFileThread([this, alive, disk, last_of, reading, folder = CheckpointFolder(),
                       keep = id_.spec.checkpoint.keep,
                       here = host_->HostName()]() -> std::function<void()> {
    if (!reading->Step(*disk)) {
      return [this, alive, last_of, reading] {
        if (alive.expired()) return;
        read_back_.first = reading->done();
        if (ended() || !book_ || phase_ >= Phase::kWriting) {
          manifest_writing_ = false;
          return;
        }
        Touch();
        StepReadBack(reading, last_of);
      };
    }
    const absl::Status unread = UnreadError(reading->unread(), reading->total(), folder, here);
    absl::StatusOr<Saved> saved = unread.ok()
                                      ? SaveManifest(*disk, {folder, reading->manifest(), keep})
                                      : absl::StatusOr<Saved>(unread);
    return [this, alive, last_of, reading, unread, saved = std::move(saved)] {
      if (!alive.expired()) OnManifest(reading->manifest(), saved, last_of, !unread.ok());
    };
  });
}

// The files of the last checkpoint of a job that has succeeded stay unreadable. The job must not
// wait for ever for what nobody will mend, nor end as if it were saved.
void Job::GiveUpLastManifest(const absl::Status& why) {
  if (id_.spec.checkpoint.given) {
    Fail(MakeError(UserError(absl::Status(why.code(),
                                          absl::StrCat("the last checkpoint: ", why.message()))),
                   "user", "coordinator"),
         true);
    return;
  }
  checkpoint_.set_complete(false);
  checkpoint_.set_trouble(
      absl::StrCat("there is no checkpoint of the job's end: ", checkpoint_.trouble()));
  Event("warning", checkpoint_.trouble());
  if (journals()) *Note().mutable_checkpoint() = checkpoint_;
  FinishJob();
}

}  // namespace evergrad::coordinator

#include "common/object_store/object_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/object_store/path_error.h"

namespace evergrad::object_store {
namespace {

constexpr int kPartsPerSize = 1'000;                 // parts until the size doubles
constexpr std::uint64_t kPartBytesMax = 5ull << 30;  // the limit of S3 and GCS

// Collects bytes in one buffer, and hands each full buffer to the IoThreads as a part. The public
// functions are called by one thread.
class ObjectWriter final : public fs::WritableFile {
 public:
  explicit ObjectWriter(WriterParts parts) : parts_(std::move(parts)) {}

  ~ObjectWriter() override {
    {
      MutexLock lock(&mu_);
      abandoned_ = true;
      while (in_flight_ > 0) changed_.Wait(&mu_);
    }
    // No part is in flight any more, so none can arrive after the abort. An error of the abort is
    // ignored: the caller has the error of the write, and a lifecycle rule of the bucket can remove
    // the parts.
    if (!upload_.empty() && !completed_)
      parts_.store->AbortUpload(parts_.key, upload_).IgnoreError();
  }

  absl::Status Append(std::span<const std::byte> bytes) override {
    EG_RETURN_IF_ERROR(Usable());
    absl::Status status = Write(bytes);
    ended_ = !status.ok();
    return status;
  }

  absl::Status Commit() override {
    EG_RETURN_IF_ERROR(Usable());
    ended_ = true;  // a second Commit fails, even if this Commit succeeds
    EG_RETURN_IF_ERROR(At("fs.sync"));
    if (upload_.empty()) {
      EG_RETURN_IF_ERROR(At("fs.link"));
      EG_RETURN_IF_ERROR(Named(parts_.store->Put(parts_.key, buffer_, parts_.mode)));
    } else {
      EG_RETURN_IF_ERROR(SendPart());
      EG_ASSIGN_OR_RETURN(const std::vector<UploadedPart> sent, WaitForParts());
      EG_RETURN_IF_ERROR(At("fs.link"));
      EG_RETURN_IF_ERROR(
          Named(parts_.store->CompleteUpload(parts_.key, upload_, sent, parts_.mode)));
      completed_ = true;
    }
    absl::Status announced = At("fs.sync_folder");
    if (!announced.ok() && parts_.mode == PutMode::kIfAbsent)
      parts_.store->Delete(parts_.key).IgnoreError();
    return announced;
  }

 private:
  absl::Status At(absl::string_view failpoint) const {
    return parts_.failpoints == nullptr ? absl::OkStatus() : parts_.failpoints->ErrorAt(failpoint);
  }
  absl::Status Failed(const absl::Status& cause) const {
    return PathError("cannot write file", parts_.path, cause);
  }
  // Returns the error of a step that gives the object its name.
  absl::Status Named(const absl::Status& status) const {
    if (status.ok()) return status;
    if (absl::IsAlreadyExists(status))
      return fs::FileError(EEXIST, "cannot name file", parts_.path);
    return Failed(status);
  }
  absl::Status Usable() const {
    if (!ended_) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("file is committed, or an earlier call failed: path=", parts_.path));
  }

  // Returns the size of part `number`, which begins at 1. The sizes double, so that kPartsMax parts
  // of 8 MiB at the beginning are 8 TiB.
  std::uint64_t PartBytes(int number) const {
    const int doublings = (number - 1) / kPartsPerSize;
    return std::max(parts_.part_bytes, std::min(parts_.part_bytes << doublings, kPartBytesMax));
  }

  absl::Status Write(std::span<const std::byte> bytes) {
    EG_RETURN_IF_ERROR(At("fs.write"));
    {
      MutexLock lock(&mu_);
      if (!error_.ok()) return error_;
    }
    while (!bytes.empty()) {
      // A full part is sent only when another byte follows, so the last part is never empty, and a
      // file of exactly one part takes one request.
      if (buffer_.size() == PartBytes(parts_begun_ + 1)) EG_RETURN_IF_ERROR(SendPart());
      const std::uint64_t part_bytes = PartBytes(parts_begun_ + 1);
      if (buffer_.empty() && parts_begun_ > 0) buffer_.reserve(part_bytes);
      const auto count = std::min<std::uint64_t>(bytes.size(), part_bytes - buffer_.size());
      buffer_.append(reinterpret_cast<const char*>(bytes.data()), count);
      bytes = bytes.subspan(count);
    }
    return absl::OkStatus();
  }

  // Waits until a part can be sent, and sends the buffer. Returns the error of an earlier part.
  absl::Status SendPart() {
    const int number = parts_begun_ + 1;
    if (number > kPartsMax)
      return absl::ResourceExhaustedError(absl::StrCat(
          "the file would be too large: path=", parts_.path, " parts_max=", kPartsMax));
    if (upload_.empty()) {
      absl::StatusOr<std::string> upload = parts_.store->BeginUpload(parts_.key);
      if (!upload.ok()) return Failed(upload.status());
      if (upload->empty())
        return Failed(absl::DataLossError("the store returned an upload without an id"));
      upload_ = *std::move(upload);
    }
    {
      MutexLock lock(&mu_);
      while (in_flight_ >= parts_.uploads && error_.ok()) changed_.Wait(&mu_);
      if (!error_.ok()) return error_;
      ++in_flight_;
      sent_.push_back({number, ""});
    }
    parts_begun_ = number;
    parts_.threads->Post([this, number, bytes = std::exchange(buffer_, {})]() mutable {
      PutPart(number, std::move(bytes));
    });
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<UploadedPart>> WaitForParts() {
    MutexLock lock(&mu_);
    while (in_flight_ > 0) changed_.Wait(&mu_);
    if (!error_.ok()) return error_;
    return sent_;
  }

  // Runs on an I/O thread. The writer may be destroyed as soon as the lock is released at the end.
  void PutPart(int number, std::string bytes) {
    bool needed = false;
    {
      MutexLock lock(&mu_);
      needed = error_.ok() && !abandoned_;
    }
    absl::StatusOr<UploadedPart> part = absl::CancelledError("an earlier part failed");
    if (needed) part = parts_.store->PutPart(parts_.key, upload_, number, bytes);
    std::string().swap(bytes);  // the memory is free before the next part may be sent
    if (part.ok() && part->number != number)
      part = absl::DataLossError("a part has another number");
    MutexLock lock(&mu_);
    --in_flight_;
    if (part.ok()) {
      sent_[static_cast<std::size_t>(number) - 1] = *std::move(part);
    } else if (error_.ok()) {
      error_ = Failed(part.status());
    }
    changed_.NotifyAll();
  }

  const WriterParts parts_;
  std::string buffer_;      // the part that is being filled
  int parts_begun_ = 0;     // parts that were sent or are being sent
  std::string upload_;      // "" before the first part; constant while parts are in flight
  bool ended_ = false;      // committed, or failed
  bool completed_ = false;  // the upload is an object
  Mutex mu_;
  CondVar changed_;
  int in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mu_);              // the first error of a part
  std::vector<UploadedPart> sent_ ABSL_GUARDED_BY(mu_);  // in the order of their numbers
};

}  // namespace

std::unique_ptr<fs::WritableFile> MakeObjectWriter(WriterParts parts) {
  return std::make_unique<ObjectWriter>(std::move(parts));
}

}  // namespace evergrad::object_store

#include "worker/runner/upload.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"

namespace evergrad::worker {

Upload::Upload(std::vector<File> files, std::size_t chunk_bytes, std::size_t window_bytes)
    : files_(std::move(files)), chunk_bytes_(chunk_bytes), window_bytes_(window_bytes) {}

std::optional<Upload::Chunk> Upload::Next() {
  if (done() || last_sent_ || sent_ - confirmed_ + chunk_bytes_ > window_bytes_)
    return std::nullopt;
  const File& file = files_[file_];
  Chunk chunk;
  chunk.file = file_;
  chunk.offset = sent_;
  chunk.bytes = static_cast<std::size_t>(std::min<std::uint64_t>(chunk_bytes_, file.bytes - sent_));
  sent_ += chunk.bytes;
  chunk.last = last_sent_ = sent_ == file.bytes;
  return chunk;
}

absl::Status Upload::Confirm(absl::string_view name, std::uint64_t bytes) {
  if (done() || name != files_[file_].name || bytes > sent_)
    return absl::InvalidArgumentError(absl::StrCat(
        "the coordinator confirmed data that was not sent: name=", CleanText(name, 100),
        " bytes=", bytes));
  confirmed_ = std::max(confirmed_, bytes);
  if (!last_sent_ || confirmed_ < files_[file_].bytes) return absl::OkStatus();
  former_ += confirmed_;
  ++file_;
  sent_ = confirmed_ = 0;
  last_sent_ = false;
  return absl::OkStatus();
}

void Upload::Restart() {
  ++generation_;
  sent_ = confirmed_ = 0;
  last_sent_ = false;
}

}  // namespace evergrad::worker

#include "common/weights/weight_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/fs/file_system.h"
#include "common/fs/raw_file.h"
#include "common/weights/weight_format.h"

namespace evergrad::weights {
WeightStream::WeightStream(std::string path, Format format, std::vector<StreamedTensor> tensors)
    : path_(std::move(path)),
      beside_(absl::StrCat(path_, ".", ::getpid(), ".tmp")),
      format_(format),
      tensors_(std::move(tensors)),
      places_(tensors_.size()) {}

absl::StatusOr<std::unique_ptr<WeightStream>> WeightStream::Create(
    const std::string& path, Format format, std::vector<StreamedTensor> tensors) {
  if (tensors.empty())
    return absl::InvalidArgumentError(absl::StrCat("no variables to write: path=", path));
  std::set<absl::string_view> names;
  for (const StreamedTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      return absl::InvalidArgumentError(
          absl::StrCat("duplicate variable name: path=", path, " name=", tensor.name));
  }
  std::unique_ptr<WeightStream> stream(new WeightStream(path, format, std::move(tensors)));
  EG_RETURN_IF_ERROR(stream->Begin());
  return stream;
}

WeightStream::~WeightStream() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(beside_.c_str());
}

std::string WeightStream::EntryName(std::size_t i) const {
  return absl::StrCat(tensors_[i].name, ".npy");
}

absl::Status WeightStream::Begin() {
  fd_ = ::open(beside_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) return fs::FileError(errno, "cannot create file", path_);
  if (format_ == Format::kNpz) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      Place& place = places_[i];
      place.npy = NpyHeader(tensors_[i]);
      place.crc = Crc(0, place.npy.data(), place.npy.size());
      place.head = end_;
      place.begin = end_ +
                    LocalHeader(EntryName(i), 0, place.npy.size() + tensors_[i].bytes()).size() +
                    place.npy.size();
      end_ = place.begin + tensors_[i].bytes();
    }
    return absl::OkStatus();  // the heads contain the checksums, so they are written last
  }
  std::vector<std::uint64_t> begins;
  const std::string head = SafetensorsHead(tensors_, &begins);
  end_ = head.size();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    places_[i].begin = begins[i];
    end_ += tensors_[i].bytes();
  }
  return Put(0, head);
}

absl::Status WeightStream::Put(std::uint64_t at, const std::string& bytes) {
  return Put(at, std::as_bytes(std::span(bytes)));
}

absl::Status WeightStream::Put(std::uint64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fs::FileError(n < 0 ? errno : EIO, "cannot write file", path_);
    at += static_cast<std::uint64_t>(n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status WeightStream::Append(std::size_t tensor, std::span<const std::byte> bytes) {
  Place& place = places_.at(tensor);
  EG_CHECK(bytes.size() <= tensors_[tensor].bytes() - place.filled);
  if (format_ == Format::kNpz) place.crc = Crc(place.crc, bytes.data(), bytes.size());
  const std::uint64_t at = place.begin + place.filled;
  place.filled += bytes.size();
  return Put(at, bytes);
}

absl::Status WeightStream::FinishNpz() {
  std::string directory;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Place& place = places_[i];
    const std::uint64_t bytes = place.npy.size() + tensors_[i].bytes();
    EG_RETURN_IF_ERROR(Put(place.head, LocalHeader(EntryName(i), place.crc, bytes) + place.npy));
    directory += DirectoryEntry(EntryName(i), place.crc, bytes, place.head);
  }
  return Put(end_, directory + DirectoryEnd(tensors_.size(), end_, directory.size()));
}

absl::Status WeightStream::Finish() {
  EG_CHECK(fd_ >= 0);
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    EG_CHECK(places_[i].filled == tensors_[i].bytes());
  if (format_ == Format::kNpz) EG_RETURN_IF_ERROR(FinishNpz());
  if (::fsync(fd_) != 0) return fs::FileError(errno, "cannot sync file", path_);
  if (std::rename(beside_.c_str(), path_.c_str()) != 0)
    return fs::FileError(errno, "cannot rename file", path_);
  ::close(std::exchange(fd_, -1));
  return fs::SyncFolder(fs::FolderOf(path_));
}

}  // namespace evergrad::weights

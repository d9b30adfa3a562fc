#include "coordinator/runs/run_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "common/base/text.h"
#include "common/client/run_file_names.h"
#include "common/fs/file.h"
#include "common/fs/file_system.h"
#include "common/fs/raw_file.h"

namespace evergrad::coordinator {
namespace {

using client::kRunFileNames;

std::string PathOf(const std::string& folder, absl::string_view name) {
  return absl::StrCat(folder, "/", name);
}

// Returns fewer bytes than requested only at the end of the file.
absl::StatusOr<std::size_t> ReadAt(int fd, std::uint64_t offset, std::span<char> to,
                                   const std::string& path) {
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t n =
        ::pread(fd, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fs::FileError(errno, "cannot read file", path);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

std::string Hex(absl::string_view digest) { return snapshot::Hex(snapshot::BytesOf(digest)); }

// Opens a regular file and refuses any other kind.
absl::StatusOr<int> OpenRegular(const std::string& path, std::uint64_t* bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return fs::FileError(errno, "cannot open file", path);
  struct stat about {};
  if (::fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
    ::close(fd);
    return absl::FailedPreconditionError(
        absl::StrCat("the path is not a regular file: path=", path));
  }
  *bytes = static_cast<std::uint64_t>(about.st_size);
  return fd;
}

}  // namespace

// ---------------------------------------------------------------- received

namespace {

// Only one attempt at a time writes, so one hidden name per file is enough.
std::string HiddenPath(const std::string& folder, const std::string& name) {
  return PathOf(folder, absl::StrCat(".", absl::StrReplaceAll(name, {{"/", "-"}}), ".receiving"));
}

}  // namespace

void RemoveHalfReceived(const std::string& folder) {
  for (const char* name : client::kExportNames) ::unlink(HiddenPath(folder, name).c_str());
}

RunFileReceiver::~RunFileReceiver() { GiveUp(); }

void RunFileReceiver::GiveUp() {
  if (fd_ < 0) return;
  ::close(std::exchange(fd_, -1));
  ::unlink(beside_.c_str());
}

absl::Status RunFileReceiver::Begin(const v1::RunFileChunk& chunk) {
  GiveUp();
  if (!client::IsExportName(chunk.name()))
    return absl::InvalidArgumentError(absl::StrCat(
        "the name is not the name of an export file: name=", CleanText(chunk.name(), 100)));
  name_ = chunk.name();
  bytes_ = chunk.bytes();
  taken_ = 0;
  hash_.emplace();
  EG_RETURN_IF_ERROR(fs::MakeDirectories(fs::FolderOf(PathOf(folder_, name_))));
  beside_ = HiddenPath(folder_, name_);
  fd_ = ::open(beside_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  return fd_ < 0 ? fs::FileError(errno, "cannot create file", beside_) : absl::OkStatus();
}

absl::Status RunFileReceiver::End(const v1::RunFileChunk& chunk) {
  const std::string path = PathOf(folder_, name_);
  if (const std::string got = hash_->Bytes(); got != chunk.sha256()) {
    return absl::DataLossError(
        absl::StrCat("the digest of a received file differs from the sender's: path=", path,
                     " want=", Hex(chunk.sha256().substr(0, 32)), " got=", Hex(got)));
  }
  if (::fsync(fd_) != 0) return fs::FileError(errno, "cannot sync", beside_);
  if (std::rename(beside_.c_str(), path.c_str()) != 0)
    return fs::FileError(errno, "cannot rename", path);
  ::close(std::exchange(fd_, -1));
  return fs::SyncFolder(fs::FolderOf(path));
}

absl::StatusOr<std::uint64_t> RunFileReceiver::Take(const v1::RunFileChunk& chunk) {
  const auto refuse = [&](absl::Status status) {
    GiveUp();
    return status;
  };
  if (chunk.offset() == 0) {
    if (absl::Status status = Begin(chunk); !status.ok()) return refuse(status);
  }
  if (fd_ < 0 || chunk.name() != name_ || chunk.offset() != taken_ || chunk.bytes() != bytes_ ||
      chunk.data().size() > bytes_ - taken_) {
    return refuse(absl::InvalidArgumentError(absl::StrCat(
        "a chunk does not follow the previous chunk: name=", CleanText(chunk.name(), 100),
        " offset=", chunk.offset(), " bytes=", chunk.data().size(), " of=", chunk.bytes(),
        " want_offset=", taken_)));
  }
  const auto data = std::as_bytes(std::span(chunk.data()));
  if (const std::uint32_t got = snapshot::Crc32c(data); got != chunk.crc32c()) {
    return refuse(absl::DataLossError(absl::StrCat("a chunk was damaged in transit: name=", name_,
                                                   " offset=", chunk.offset(),
                                                   " want=", chunk.crc32c(), " got=", got)));
  }
  if (absl::Status status = fs::WriteAll(fd_, snapshot::BytesOf(chunk.data()), beside_);
      !status.ok())
    return refuse(status);
  hash_->Update(data);
  taken_ += chunk.data().size();
  if (taken_ == bytes_) {
    if (absl::Status status = End(chunk); !status.ok()) return refuse(status);
  }
  return taken_;
}

// ---------------------------------------------------------------- read back

RunFileCheck::~RunFileCheck() {
  if (fd_ >= 0) ::close(fd_);
}

absl::Status RunFileCheck::Read(std::uint64_t* left) {
  const v1::RunFileInfo& file = files_[next_];
  const std::string path = PathOf(folder_, file.name());
  if (fd_ < 0) {
    if (!client::IsExportName(file.name()))
      return absl::InvalidArgumentError(absl::StrCat(
          "the name is not the name of an export file: name=", CleanText(file.name(), 100)));
    std::uint64_t bytes = 0;
    EG_ASSIGN_OR_RETURN(fd_, OpenRegular(path, &bytes));
    offset_ = 0;
    hash_.emplace();
    if (bytes != file.bytes())
      return absl::DataLossError(
          absl::StrCat("the size of a file differs from the announced size: path=", path,
                       " want=", file.bytes(), " got=", bytes));
  }
  std::vector<char> buffer(1u << 20);
  while (*left > 0 && offset_ < file.bytes()) {
    EG_ASSIGN_OR_RETURN(const std::size_t n, ReadAt(fd_, offset_,
                                                    std::span(buffer).first(std::min<std::uint64_t>(
                                                        buffer.size(), file.bytes() - offset_)),
                                                    path));
    if (n == 0)
      return absl::DataLossError(
          absl::StrCat("a file was shortened while it was read: path=", path));
    hash_->Update(std::as_bytes(std::span(buffer).first(n)));
    offset_ += n;
    *left -= std::min<std::uint64_t>(*left, n);
  }
  if (offset_ < file.bytes()) return absl::OkStatus();
  ::close(std::exchange(fd_, -1));
  ++next_;
  if (const std::string got = hash_->Bytes(); got != file.sha256())
    return absl::DataLossError(
        absl::StrCat("the digest of a file differs from the announced digest: path=", path,
                     " want=", Hex(file.sha256().substr(0, 32)), " got=", Hex(got)));
  return absl::OkStatus();
}

bool RunFileCheck::Step() {
  std::uint64_t left = step_bytes_;
  while (status_.ok() && next_ < files_.size() && left > 0) status_ = Read(&left);
  return !status_.ok() || next_ >= files_.size();
}

// ---------------------------------------------------------------- listed and read

RunFileListing::RunFileListing(std::string folder, std::vector<v1::RunFileInfo> known,
                               std::uint64_t step_bytes)
    : folder_(std::move(folder)), known_(std::move(known)), step_bytes_(step_bytes) {}
RunFileListing::~RunFileListing() {
  if (fd_ >= 0) ::close(fd_);
}

bool RunFileListing::Step() {
  std::vector<char> buffer(1u << 20);
  std::uint64_t left = step_bytes_;
  while (next_ < kRunFileNames.size() && left > 0) {
    const std::string name = kRunFileNames[next_], path = PathOf(folder_, name);
    if (fd_ < 0) {
      const auto opened = OpenRegular(path, &bytes_);
      if (!opened.ok()) {
        ++next_;
        continue;
      }
      fd_ = *opened;
      offset_ = 0;
      hash_.emplace();
    }
    v1::RunFileInfo info;
    info.set_name(name);
    info.set_bytes(bytes_);
    const auto known = std::find_if(known_.begin(), known_.end(), [&](const v1::RunFileInfo& k) {
      return k.name() == name && k.bytes() == bytes_;
    });
    if (known != known_.end()) {
      info.set_sha256(known->sha256());
    } else {
      bool whole = true;
      while (offset_ < bytes_) {
        if (left == 0) {
          whole = false;
          break;
        }
        const auto n = ReadAt(
            fd_, offset_,
            std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), bytes_ - offset_)),
            path);
        if (!n.ok() || *n == 0) break;  // unreadable files are not listed
        hash_->Update(std::as_bytes(std::span(buffer).first(*n)));
        offset_ += *n;
        left -= std::min<std::uint64_t>(left, *n);
      }
      if (!whole) return false;
      if (offset_ == bytes_) info.set_sha256(hash_->Bytes());
    }
    ::close(std::exchange(fd_, -1));
    ++next_;
    if (!info.sha256().empty()) files_.push_back(std::move(info));
  }
  return next_ >= kRunFileNames.size();
}

absl::StatusOr<std::string> ReadRunFilePart(const std::string& folder, absl::string_view name,
                                            std::uint64_t offset, std::size_t bytes_max) {
  if (!client::IsRunFileName(name))
    return absl::NotFoundError(
        absl::StrCat("the name is not the name of a file of a run: name=", CleanText(name, 100)));
  const std::string path = PathOf(folder, name);
  std::uint64_t bytes = 0;
  EG_ASSIGN_OR_RETURN(const int fd, OpenRegular(path, &bytes));
  std::string data(offset >= bytes ? 0 : std::min<std::uint64_t>(bytes - offset, bytes_max), '\0');
  const auto n = ReadAt(fd, offset, data, path);
  ::close(fd);
  if (!n.ok()) return n.status();
  data.resize(*n);
  return data;
}

}  // namespace evergrad::coordinator

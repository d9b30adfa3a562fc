#include "common/fs/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/fs/object_uri.h"
#include "common/fs/raw_file.h"

namespace evergrad::fs {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  // An error of close() means that a write did not reach the disk.
  int Close() {
    const int r = ::close(fd_);
    fd_ = -1;
    return r;
  }

 private:
  int fd_;
};

absl::Status FromErrno(int error, absl::string_view what, absl::string_view path) {
  return absl::ErrnoToStatus(error, absl::StrCat(what, ": path=", path));
}

int OpenRetry(const char* path, int flags, mode_t mode = 0) {
  int fd;
  do {
    fd = ::open(path, flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

absl::Status WriteText(int fd, absl::string_view text, const std::string& path) {
  return WriteAll(fd, std::as_bytes(std::span(text.data(), text.size())), path);
}

// Removes the partial result of a failed write. An error of the removal is ignored, because the
// caller reports the error of the write.
void CutBack(int fd, std::uint64_t bytes) { (void)!::ftruncate(fd, static_cast<off_t>(bytes)); }

// Returns the number of bytes of the whole lines at the beginning of `text`.
std::uint64_t LinesBytes(absl::string_view text) {
  const std::size_t end = text.rfind('\n');
  return end == absl::string_view::npos ? 0 : end + 1;
}

absl::Status SyncFolderOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return SyncFolder(parent.empty() ? std::string(1, '.') : parent);
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, std::uint64_t bytes_max) {
  Descriptor fd(OpenRetry(path.c_str(), O_RDONLY));
  if (fd.get() < 0) return FromErrno(errno, "cannot open file", path);
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return FromErrno(errno, "cannot stat file", path);
  if (S_ISDIR(info.st_mode))
    return absl::FailedPreconditionError(
        absl::StrCat("the path is a folder, not a file: path=", path));
  const auto too_large = [&] {
    return absl::ResourceExhaustedError(
        absl::StrCat("file is too large: path=", path, " limit_bytes=", bytes_max));
  };
  if (S_ISREG(info.st_mode) && static_cast<std::uint64_t>(info.st_size) > bytes_max)
    return too_large();
  // The size is only a hint: files under /proc report 0, and a file may grow while it is read.
  std::string contents;
  contents.reserve(S_ISREG(info.st_mode) ? static_cast<std::size_t>(info.st_size) : 0);
  char piece[64 * 1024];
  for (;;) {
    const ssize_t n = ::read(fd.get(), piece, sizeof(piece));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FromErrno(errno, "cannot read file", path);
    if (n == 0) return contents;
    if (contents.size() + static_cast<std::uint64_t>(n) > bytes_max) return too_large();
    contents.append(piece, static_cast<std::size_t>(n));
  }
}

absl::Status WriteFileAtomic(const std::string& path, absl::string_view contents) {
  // O_EXCL reserves the name against other writers of the same target.
  std::string beside;
  int raw = -1;
  for (int n = 0; raw < 0; ++n) {
    beside = absl::StrCat(path, ".tmp-", ::getpid(), "-", n);
    raw = OpenRetry(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (raw < 0 && (errno != EEXIST || n >= 1000))
      return FromErrno(errno, "cannot create file", beside);
  }
  Descriptor fd(raw);
  absl::Status status = WriteText(fd.get(), contents, path);
  if (status.ok() && ::fsync(fd.get()) != 0) status = FromErrno(errno, "cannot sync file", path);
  if (status.ok() && fd.Close() != 0) status = FromErrno(errno, "cannot close file", path);
  if (status.ok() && ::rename(beside.c_str(), path.c_str()) != 0)
    status = FromErrno(errno, "cannot rename file", path);
  if (!status.ok()) {
    ::unlink(beside.c_str());
    return status;
  }
  return SyncFolderOf(path);
}

absl::Status AppendLine(const std::string& path, absl::string_view line) {
  Descriptor fd(OpenRetry(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666));
  if (fd.get() < 0) return FromErrno(errno, "cannot open file", path);
  struct stat before;
  if (::fstat(fd.get(), &before) != 0) return FromErrno(errno, "cannot stat file", path);
  absl::Status status = WriteText(fd.get(), absl::StrCat(line, "\n"), path);
  if (!status.ok()) {
    CutBack(fd.get(), static_cast<std::uint64_t>(before.st_size));
    return status;
  }
  if (fd.Close() != 0) return FromErrno(errno, "cannot close file", path);
  return absl::OkStatus();
}

absl::Status SyncFile(const std::string& path) {
  Descriptor fd(OpenRetry(path.c_str(), O_WRONLY, 0));
  if (fd.get() < 0) return FromErrno(errno, "cannot open file", path);
  if (::fsync(fd.get()) != 0) return FromErrno(errno, "cannot sync file", path);
  return absl::OkStatus();
}

absl::Status RestoreEnd(const std::string& path, std::uint64_t offset, absl::string_view tail) {
  Descriptor fd(OpenRetry(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666));
  if (fd.get() < 0) return FromErrno(errno, "cannot open file", path);
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return FromErrno(errno, "cannot stat file", path);
  const std::uint64_t size = static_cast<std::uint64_t>(info.st_size);
  absl::Status status;
  if (size > offset + tail.size()) {
    if (::ftruncate(fd.get(), static_cast<off_t>(offset + tail.size())) != 0)
      return FromErrno(errno, "cannot truncate file", path);
  } else {
    const absl::string_view missing = size < offset ? tail : tail.substr(size - offset);
    if (absl::Status written = WriteText(fd.get(), missing, path); !written.ok()) {
      CutBack(fd.get(), size < offset ? size : offset + LinesBytes(tail.substr(0, size - offset)));
      return written;
    }
    if (size < offset)
      status = absl::DataLossError(absl::StrCat("the file is shorter than expected: path=", path,
                                                " bytes=", size, " want=", offset));
  }
  if (fd.Close() != 0) return FromErrno(errno, "cannot close file", path);
  return status;
}

absl::Status MakeDirectories(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("the path is a file, not a folder: path=", path));
  }
  if (errno != ENOENT) return FromErrno(errno, "cannot make folder", path);
  const std::string parent = std::filesystem::path(path).parent_path().string();
  // The parent equals the path if the topmost folder has been reached.
  if (parent == path) return FromErrno(ENOENT, "cannot make folder", path);
  if (!parent.empty()) EG_RETURN_IF_ERROR(MakeDirectories(parent));
  const bool made = ::mkdir(path.c_str(), 0777) == 0;
  if (!made && errno != EEXIST) return FromErrno(errno, "cannot make folder", path);
  // A folder's name must be durable, because otherwise a power loss would also lose the files
  // synced inside it.
  if (made) return SyncFolderOf(path);
  // Another process created the folder first.
  if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the path is a file, not a folder: path=", path));
}

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

absl::StatusOr<std::string> LocalPath(absl::string_view uri) {
  const std::size_t colon = uri.find("://");
  if (colon == absl::string_view::npos) return std::string(uri);
  const absl::string_view scheme = uri.substr(0, colon);
  const absl::string_view rest = uri.substr(colon + 3);
  if (scheme != "file") {
    return absl::UnimplementedError(
        absl::StrCat("unsupported URI scheme: scheme=", scheme, " uri=", uri, " supported=file",
                     IsObjectUri(uri) ? " (a local path is needed here)" : ""));
  }
  if (!absl::StartsWith(rest, "/")) {
    return absl::InvalidArgumentError(
        absl::StrCat("a file URI must start with file:/// and name no host: uri=", uri));
  }
  return std::string(rest);
}

}  // namespace evergrad::fs

// Implements FileSystem for local files (`file://`). A file is written without a name (O_TMPFILE),
// synced, and linked to its name; then its folder is synced.
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/fs/descriptor.h"
#include "common/fs/file.h"
#include "common/fs/file_system.h"
#include "common/fs/roots.h"

namespace evergrad::fs {
namespace {

constexpr char kTemporaryPrefix[] = ".evergrad-tmp-";
constexpr std::size_t kWriteBytesMax = 1u << 30;  // Linux writes at most 2 GiB at once

Descriptor OpenAt(int folder, const std::string& name, int flags, mode_t mode = 0) {
  int fd;
  do {
    fd = ::openat(folder, name.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return Descriptor(fd);
}

absl::Status At(fault::Failpoints* failpoints, absl::string_view name) {
  return failpoints == nullptr ? absl::OkStatus() : failpoints->ErrorAt(name);
}

absl::Status Sync(int fd, fault::Failpoints* failpoints, absl::string_view failpoint,
                  absl::string_view what, const std::string& path) {
  if (failpoints != nullptr && failpoints->At(failpoint).action == fault::Action::kError)
    return absl::InternalError(absl::StrCat(what, ": failpoint=", failpoint, " path=", path));
  int result;
  do {
    result = ::fsync(fd);
  } while (result != 0 && errno == EINTR);
  // Some file systems cannot sync a folder and return EINVAL, which is ignored.
  if (result != 0 && !(errno == EINVAL && failpoint == "fs.sync_folder"))
    return FileError(errno, what, path);
  return absl::OkStatus();
}

// Removes temporary files whose writer has died. The lock of such a file is free.
void SweepLeftovers(int folder) {
  DIR* entries = ::fdopendir(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (entries == nullptr) return;
  while (const dirent* entry = ::readdir(entries)) {
    const std::string name = entry->d_name;
    if (!absl::StartsWith(name, kTemporaryPrefix)) continue;
    const Descriptor file = OpenAt(folder, name, O_RDWR | O_NOFOLLOW);
    if (file.get() >= 0 && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0)
      ::unlinkat(folder, name.c_str(), 0);
  }
  ::closedir(entries);
}

class LocalWriter final : public WritableFile {
 public:
  LocalWriter(std::string path, std::string name, Descriptor folder, bool replaces,
              fault::Failpoints* failpoints)
      : path_(std::move(path)),
        name_(std::move(name)),
        folder_(std::move(folder)),
        replaces_(replaces),
        failpoints_(failpoints) {}
  ~LocalWriter() override { DropTemporary(); }

  absl::Status Begin(bool unnamed) {
    // Commit gives a name to such a file through its path in /proc, so /proc must be available.
    // A file without a name cannot take the place of another one.
    if (unnamed && !replaces_ && ::access("/proc/self/fd", X_OK) == 0) {
      file_ = OpenAt(folder_.get(), ".", O_WRONLY | O_TMPFILE, 0666);
      if (file_.get() >= 0) return absl::OkStatus();
      if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT)
        return FileError(errno, "cannot create file", path_);
    }
    SweepLeftovers(folder_.get());
    static std::atomic<std::uint64_t> next{0};
    for (int tries = 0; tries < 1000; ++tries) {
      temporary_ = absl::StrCat(kTemporaryPrefix, ::getpid(), "-", next.fetch_add(1));
      file_ = OpenAt(folder_.get(), temporary_, O_WRONLY | O_CREAT | O_EXCL, 0666);
      if (file_.get() < 0 && errno == EEXIST) continue;
      if (file_.get() < 0) break;
      // Between the open and the lock, another writer may have removed this file as a leftover. In
      // that case either the lock fails, or the name no longer refers to the file, and the next
      // name is tried.
      struct stat ours, named;
      if (::flock(file_.get(), LOCK_EX | LOCK_NB) == 0 && ::fstat(file_.get(), &ours) == 0 &&
          ::fstatat(folder_.get(), temporary_.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
          ours.st_ino == named.st_ino) {
        return absl::OkStatus();
      }
    }
    const int error = errno;
    temporary_.clear();
    return FileError(error, "cannot create file", path_);
  }

  absl::Status Append(std::span<const std::byte> bytes) override {
    EG_RETURN_IF_ERROR(Usable());
    absl::Status status = Write(bytes);
    failed_ = !status.ok();
    return status;
  }

  absl::Status Commit() override {
    EG_RETURN_IF_ERROR(Usable());
    failed_ = true;  // a second Commit fails, even if this Commit succeeds
    EG_RETURN_IF_ERROR(Sync(file_.get(), failpoints_, "fs.sync", "cannot sync file", path_));
    EG_RETURN_IF_ERROR(At(failpoints_, "fs.link"));
    EG_RETURN_IF_ERROR(Link());
    absl::Status synced =
        Sync(folder_.get(), failpoints_, "fs.sync_folder", "cannot sync folder of file", path_);
    if (!synced.ok() && !replaces_) ::unlinkat(folder_.get(), name_.c_str(), 0);
    return synced;
  }

 private:
  absl::Status Usable() const {
    if (!failed_) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("file is committed, or an earlier call failed: path=", path_));
  }

  absl::Status Write(std::span<const std::byte> bytes) {
    EG_RETURN_IF_ERROR(At(failpoints_, "fs.write"));
    while (!bytes.empty()) {
      const ssize_t n = ::write(file_.get(), bytes.data(), std::min(bytes.size(), kWriteBytesMax));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return FileError(errno, "cannot write file", path_);
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return absl::OkStatus();
  }

  absl::Status Link() {
    if (replaces_) {
      if (::renameat(folder_.get(), temporary_.c_str(), folder_.get(), name_.c_str()) != 0)
        return FileError(errno, "cannot name file", path_);
      temporary_.clear();
      return absl::OkStatus();
    }
    if (temporary_.empty()) {
      const std::string self = absl::StrCat("/proc/self/fd/", file_.get());
      if (::linkat(AT_FDCWD, self.c_str(), folder_.get(), name_.c_str(), AT_SYMLINK_FOLLOW) != 0)
        return FileError(errno, "cannot name file", path_);
      return absl::OkStatus();
    }
    if (::linkat(folder_.get(), temporary_.c_str(), folder_.get(), name_.c_str(), 0) == 0) {
      DropTemporary();
      return absl::OkStatus();
    }
    // Without hard links, the name is taken by a rename that fails if the target exists, so nothing
    // is overwritten.
    const bool no_links =
        errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS || errno == EMLINK;
    if (!no_links) return FileError(errno, "cannot name file", path_);
    if (::renameat2(folder_.get(), temporary_.c_str(), folder_.get(), name_.c_str(),
                    RENAME_NOREPLACE) == 0) {
      temporary_.clear();
      return absl::OkStatus();
    }
    if (errno != EINVAL && errno != ENOSYS) return FileError(errno, "cannot name file", path_);
    return absl::UnimplementedError(
        absl::StrCat("this file system has neither hard links nor a rename that fails if the "
                     "target exists: path=",
                     path_, " (choose another folder)"));
  }

  void DropTemporary() {
    if (!temporary_.empty()) ::unlinkat(folder_.get(), temporary_.c_str(), 0);
    temporary_.clear();
  }

  const std::string path_, name_;
  const Descriptor folder_;
  const bool replaces_;
  fault::Failpoints* const failpoints_;
  Descriptor file_;
  std::string temporary_;  // "" if the file has no name
  bool failed_ = false;
};

class LocalReader final : public ReadableFile {
 public:
  LocalReader(std::string path, Descriptor file, std::uint64_t size)
      : path_(std::move(path)), file_(std::move(file)), size_(size) {}
  std::uint64_t size() const override { return size_; }
  absl::StatusOr<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> out) override {
    std::size_t done = 0;
    while (done < out.size()) {
      const ssize_t n =
          ::pread(file_.get(), out.data() + done, std::min(out.size() - done, kWriteBytesMax),
                  static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0)
        return FileError(errno, absl::StrCat("cannot read file: offset=", offset + done), path_);
      if (n == 0) break;
      done += static_cast<std::size_t>(n);
    }
    return done;
  }

 private:
  const std::string path_;
  const Descriptor file_;
  const std::uint64_t size_;
};

class LocalFileSystem final : public FileSystem {
 public:
  explicit LocalFileSystem(LocalOptions options)
      : options_(options), roots_(options.roots == nullptr ? everywhere_ : *options.roots) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(absl::string_view uri) override {
    return Begin(uri, false);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> Replace(absl::string_view uri) override {
    return Begin(uri, true);
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> Begin(absl::string_view uri, bool replaces) {
    EG_ASSIGN_OR_RETURN(const std::string path, LocalPath(uri));
    const std::string name = NameOf(path);
    if (name.empty() || name == "." || name == ".." || absl::StartsWith(name, kTemporaryPrefix)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the path does not end in a file name: path=", path));
    }
    Descriptor folder = roots_.Open(FolderOf(path), O_RDONLY | O_DIRECTORY);
    if (folder.get() < 0) return Failed("cannot open the folder of a new file", path);
    struct stat info;
    const bool exists = ::fstatat(folder.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
    if (exists && S_ISDIR(info.st_mode))
      return FileError(replaces ? EISDIR : EEXIST, "cannot create file", path);
    if (exists && !replaces) return FileError(EEXIST, "cannot create file", path);
    if (!exists && errno != ENOENT) return FileError(errno, "cannot create file", path);
    auto file =
        std::make_unique<LocalWriter>(path, name, std::move(folder), replaces, options_.failpoints);
    EG_RETURN_IF_ERROR(file->Begin(options_.unnamed));
    return std::unique_ptr<WritableFile>(std::move(file));
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(absl::string_view uri) override {
    EG_ASSIGN_OR_RETURN(const std::string path, LocalPath(uri));
    // O_NONBLOCK prevents a named pipe in a user's folder from blocking the thread.
    Descriptor file = roots_.Open(path, O_RDONLY | O_NONBLOCK);
    if (file.get() < 0) return Failed("cannot open file", path);
    struct stat info;
    if (::fstat(file.get(), &info) != 0) return FileError(errno, "cannot stat file", path);
    if (S_ISDIR(info.st_mode)) return FileError(EISDIR, "cannot open file", path);
    if (!S_ISREG(info.st_mode))
      return absl::FailedPreconditionError(absl::StrCat("not a regular file: path=", path));
    return std::unique_ptr<ReadableFile>(std::make_unique<LocalReader>(
        path, std::move(file), static_cast<std::uint64_t>(info.st_size)));
  }

  absl::StatusOr<std::vector<ListedFile>> List(absl::string_view uri) override {
    EG_ASSIGN_OR_RETURN(const std::string path, LocalPath(uri));
    Descriptor folder = roots_.Open(path, O_RDONLY | O_DIRECTORY);
    if (folder.get() < 0) return Failed("cannot list folder", path);
    DIR* entries = ::fdopendir(folder.get());
    if (entries == nullptr) return FileError(errno, "cannot list folder", path);
    folder.Release();
    std::vector<ListedFile> list;
    absl::Status status;
    for (;;) {
      errno = 0;
      const dirent* found = ::readdir(entries);
      if (found == nullptr) {
        if (errno != 0) status = FileError(errno, "cannot list folder", path);
        break;
      }
      const std::string name = found->d_name;
      if (name == "." || name == ".." || absl::StartsWith(name, kTemporaryPrefix)) continue;
      struct stat info;
      // The file was removed meanwhile, or the entry is a dangling link.
      if (::fstatat(::dirfd(entries), name.c_str(), &info, 0) != 0) continue;
      if (list.size() == kListEntriesMax) {
        status = absl::ResourceExhaustedError(
            absl::StrCat("too many files in a folder: path=", path, " max=", kListEntriesMax));
        break;
      }
      list.push_back({name, S_ISDIR(info.st_mode) ? 0 : static_cast<std::uint64_t>(info.st_size),
                      S_ISDIR(info.st_mode)});
    }
    ::closedir(entries);
    if (!status.ok()) return status;
    std::sort(list.begin(), list.end(),
              [](const ListedFile& a, const ListedFile& b) { return a.name < b.name; });
    return list;
  }

  absl::Status Remove(absl::string_view uri) override {
    EG_ASSIGN_OR_RETURN(const std::string path, LocalPath(uri));
    EG_RETURN_IF_ERROR(At(options_.failpoints, "fs.remove"));
    const Descriptor folder = roots_.Open(FolderOf(path), O_RDONLY | O_DIRECTORY);
    if (folder.get() < 0) return Failed("cannot remove", path);
    const std::string name = NameOf(path);
    if (::unlinkat(folder.get(), name.c_str(), 0) != 0) {
      struct stat info;
      const int error = errno;
      const bool is_folder =
          ::fstatat(folder.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
          S_ISDIR(info.st_mode);
      if (!is_folder) return FileError(error, "cannot remove", path);
      if (::unlinkat(folder.get(), name.c_str(), AT_REMOVEDIR) != 0)
        return FileError(errno, "cannot remove", path);
    }
    return Sync(folder.get(), options_.failpoints, "fs.sync_folder",
                "cannot sync folder of removed file", path);
  }

  absl::StatusOr<bool> Exists(absl::string_view uri) override {
    EG_ASSIGN_OR_RETURN(const std::string path, LocalPath(uri));
    const Descriptor folder = roots_.Open(FolderOf(path), O_PATH | O_DIRECTORY);
    struct stat info;
    const std::string name = NameOf(path);
    if (folder.get() >= 0 &&
        ::fstatat(folder.get(), name.empty() ? "." : name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0)
      return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    return Failed("cannot stat", path);
  }

  absl::Status MakeFolders(absl::string_view uri) override {
    EG_ASSIGN_OR_RETURN(std::string path, LocalPath(uri));
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    if (roots_.Open(path, O_PATH | O_DIRECTORY).get() >= 0) return absl::OkStatus();
    if (errno != ENOENT) return Failed("cannot make folder", path);
    const std::string parent = FolderOf(path);
    if (parent != path) EG_RETURN_IF_ERROR(MakeFolders(parent));
    const Descriptor folder = roots_.Open(parent, O_RDONLY | O_DIRECTORY);
    if (folder.get() < 0) return Failed("cannot make folder", path);
    if (::mkdirat(folder.get(), NameOf(path).c_str(), 0777) != 0 && errno != EEXIST)
      return FileError(errno, "cannot make folder", path);
    return Sync(folder.get(), options_.failpoints, "fs.sync_folder",
                "cannot sync the parent of a new folder", path);
  }

 private:
  // Returns the error of a failed Roots::Open.
  absl::Status Failed(absl::string_view what, const std::string& path) const {
    return errno == EXDEV ? roots_.Refusal("a checkpoint's file", path)
                          : FileError(errno, what, path);
  }

  const LocalOptions options_;
  const Roots everywhere_;
  const Roots& roots_;
};

}  // namespace

std::unique_ptr<FileSystem> MakeLocalFileSystem(LocalOptions options) {
  return std::make_unique<LocalFileSystem>(options);
}

}  // namespace evergrad::fs

// Records what a daemon asks of the disk: the bytes that it writes, the names that it makes or
// removes, and the files that it syncs.
//
// tests/chaos/power.py preloads this library into a daemon (LD_PRELOAD), and computes from the
// records what a loss of power would have left on the disk. A SIGKILL alone proves nothing about
// fsync, because the kernel keeps written data. The daemons do not know of this library.
//
// EVERGRAD_POWER_ROOTS names the folders that are watched, separated by ':'. EVERGRAD_POWER_LOG
// names the file to which records are appended:
//   u32 bytes of the rest | u8 kind | u64 time (CLOCK_MONOTONIC, ns) | u64 inode | u64 offset or
//   EVERGRAD_POWER_UNSYNCED names a folder. The sync of a file below it is not recorded, so that a
//   loss of power takes data that the daemon believes to be on the disk. The canaries
//   (tests/chaos/canaries.py) use this. Syncs of folders are still recorded.
//
// A record is written after its call has returned, and before the caller can continue. A daemon
// therefore learns of a sync only after the record of the sync was written, and everything that it
// reported as safe is in the records.
//
// The recorded calls are open(at), write(v), pwrite, ftruncate, f(data)sync, link(at), rename(at),
// unlink(at), remove, mkdir(at), rmdir, f(d)open, mkstemp. Writes through stdio are not seen one by
// one; such a file is recorded as a whole when it is synced.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr int kFdsMax = 65536;
std::atomic<bool> watched[kFdsMax];

enum Kind : std::uint8_t {
  kNew = 'n',
  kWrite = 'w',
  kSize = 't',
  kSync = 's',
  kSyncFolder = 'd',
  kName = 'l',
  kRename = 'r',
  kUnname = 'u',
  kFolder = 'm',
  kNoFolder = 'x'
};

template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

struct Log {
  std::vector<std::string> roots;
  std::string unsynced;
  int fd = -1;
  std::mutex mu;
  std::set<std::uint64_t> buffered;  // inodes of files to which stdio writes
  void Buffered(std::uint64_t inode) {
    const std::lock_guard<std::mutex> lock(mu);
    buffered.insert(inode);
  }
  bool IsBuffered(std::uint64_t inode) {
    const std::lock_guard<std::mutex> lock(mu);
    return buffered.contains(inode);
  }
  Log() {
    const char* listed = ::getenv("EVERGRAD_POWER_ROOTS");
    const char* file = ::getenv("EVERGRAD_POWER_LOG");
    const char* without = ::getenv("EVERGRAD_POWER_UNSYNCED");
    if (without != nullptr) unsynced = std::string(without) + "/";
    if (listed == nullptr || file == nullptr) return;
    std::string rest = listed;
    for (std::size_t at; !rest.empty();
         rest = at == std::string::npos ? std::string() : rest.substr(at + 1)) {
      at = rest.find(':');
      roots.push_back(rest.substr(0, at));
    }
    fd = static_cast<int>(
        ::syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  }
  bool LeavesOutSyncOf(const std::string& path) const {
    return !unsynced.empty() && path.compare(0, unsynced.size(), unsynced) == 0;
  }
  bool Covers(const std::string& path) const {
    if (fd < 0) return false;
    for (const std::string& root : roots) {
      if (path.compare(0, root.size(), root) == 0 &&
          (path.size() == root.size() || path[root.size()] == '/'))
        return true;
    }
    return false;
  }
  void Put(Kind kind, std::uint64_t inode, std::uint64_t number, const std::string& path,
           const std::string& other, const void* data, std::size_t bytes) {
    timespec now;
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    const std::uint64_t time = static_cast<std::uint64_t>(now.tv_sec) * 1000000000u +
                               static_cast<std::uint64_t>(now.tv_nsec);
    std::string record(4, '\0');
    const auto add = [&record](const void* from, std::size_t size) {
      record.append(static_cast<const char*>(from), size);
    };
    const auto add_text = [&](const std::string& text) {
      const auto size = static_cast<std::uint32_t>(text.size());
      add(&size, 4);
      record += text;
    };
    add(&kind, 1);
    add(&time, 8);
    add(&inode, 8);
    add(&number, 8);
    add_text(path);
    add_text(other);
    if (bytes > 0) add(data, bytes);
    const auto rest = static_cast<std::uint32_t>(record.size() - 4);
    ::memcpy(record.data(), &rest, 4);
    const std::lock_guard<std::mutex> lock(mu);
    for (std::size_t done = 0; done < record.size();) {
      const long n = ::syscall(SYS_write, fd, record.data() + done, record.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) ::abort();  // with a missing record, the results would be wrong
      done += static_cast<std::size_t>(n);
    }
  }
};

Log& TheLog() {
  // The object is never destroyed, because calls come before static objects are constructed and
  // after they are destroyed.
  static Log* log = new Log;
  return *log;
}

struct KeepErrno {
  int saved = errno;
  ~KeepErrno() { errno = saved; }
};

std::string PathOf(int fd) {
  char link[64], path[PATH_MAX];
  ::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t n = ::readlink(link, path, sizeof(path));
  return n > 0 ? std::string(path, static_cast<std::size_t>(n)) : std::string();
}

std::string PathAt(int folder, const char* name) {
  if (name[0] == '/') return name;
  if (folder == AT_FDCWD) {
    char here[PATH_MAX];
    return ::getcwd(here, sizeof(here)) == nullptr ? std::string(name)
                                                   : std::string(here) + "/" + name;
  }
  return PathOf(folder) + "/" + name;
}

bool Watched(int fd) {
  return fd >= 0 && fd < kFdsMax && watched[fd].load(std::memory_order_relaxed);
}

void Forget(int fd) {
  if (fd >= 0 && fd < kFdsMax) watched[fd].store(false, std::memory_order_relaxed);
}

std::uint64_t InodeOf(int fd) {
  struct stat info;
  return ::fstat(fd, &info) == 0 ? info.st_ino : 0;
}

bool IsThere(int folder, const char* name) {
  struct stat info;
  return ::fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) == 0;
}

// Records a successful open. `was_there` says whether the file existed before the call.
int Opened(int fd, int folder, const char* name, int flags, bool was_there) {
  KeepErrno keep;
  if (fd < 0 || fd >= kFdsMax || TheLog().fd < 0) return fd;
  // A program may open a descriptor once more through /proc/self/fd. The new descriptor then gets
  // the path of the file behind the old one.
  const std::string path =
      ::strncmp(name, "/proc/self/fd/", 14) == 0 ? PathOf(fd) : PathAt(folder, name);
  struct stat info;
  if (!TheLog().Covers(path) || ::fstat(fd, &info) != 0) return fd;
  if (!S_ISREG(info.st_mode)) {
    watched[fd] = S_ISDIR(info.st_mode);
    return fd;
  }
  watched[fd] = true;
  if ((flags & O_TMPFILE) == O_TMPFILE) {
    TheLog().Put(kNew, info.st_ino, 0, "", "", nullptr, 0);
  } else if ((flags & O_CREAT) != 0 && !was_there) {
    TheLog().Put(kNew, info.st_ino, 0, path, "", nullptr, 0);
  } else if ((flags & O_TRUNC) != 0) {
    TheLog().Put(kSize, info.st_ino, 0, "", "", nullptr, 0);
  }
  return fd;
}

template <typename Call>
int OpenAt(int folder, const char* name, int flags, Call call) {
  const bool was_there = (flags & O_CREAT) != 0 && IsThere(folder, name);
  return Opened(call(), folder, name, flags, was_there);
}

void Wrote(int fd, const void* data, ssize_t bytes, std::int64_t offset) {
  KeepErrno keep;
  if (bytes <= 0 || !Watched(fd)) return;
  // After an append, the position of the descriptor is the end of the written bytes.
  if (offset < 0) offset = ::lseek(fd, 0, SEEK_CUR) - bytes;
  TheLog().Put(kWrite, InodeOf(fd), static_cast<std::uint64_t>(offset), "", "", data,
               static_cast<std::size_t>(bytes));
}

int Sized(int result, int fd, std::int64_t size) {
  KeepErrno keep;
  if (result == 0 && Watched(fd))
    TheLog().Put(kSize, InodeOf(fd), static_cast<std::uint64_t>(size), "", "", nullptr, 0);
  return result;
}

int Synced(int result, int fd) {
  KeepErrno keep;
  if (result != 0 || !Watched(fd)) return result;
  struct stat info;
  if (::fstat(fd, &info) != 0) return result;
  if (S_ISDIR(info.st_mode)) {
    TheLog().Put(kSyncFolder, 0, 0, PathOf(fd), "", nullptr, 0);
  } else if (!TheLog().LeavesOutSyncOf(PathOf(fd))) {
    if (TheLog().IsBuffered(info.st_ino)) {
      std::string all(static_cast<std::size_t>(info.st_size), '\0');
      const ssize_t n = ::pread(fd, all.data(), all.size(), 0);
      if (n != info.st_size) ::abort();
      TheLog().Put(kSize, info.st_ino, 0, "", "", nullptr, 0);
      TheLog().Put(kWrite, info.st_ino, 0, "", "", all.data(), all.size());
    }
    TheLog().Put(kSync, info.st_ino, 0, "", "", nullptr, 0);
  }
  return result;
}

void Changed(Kind kind, const std::string& path, const std::string& other = "") {
  KeepErrno keep;
  if (!TheLog().Covers(path)) return;
  struct stat info;
  const std::uint64_t inode = kind == kName && ::stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
  TheLog().Put(kind, inode, 0, path, other, nullptr, 0);
}

bool Writes(const char* mode) { return mode[0] != 'r' || ::strchr(mode, '+') != nullptr; }

int ModeOf(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, int) : 0;
}

}  // namespace

#define EG_OPEN(name)                                                              \
  int name(const char* path, int flags, ...) {                                     \
    va_list arguments;                                                             \
    va_start(arguments, flags);                                                    \
    const int mode = ModeOf(flags, arguments);                                     \
    va_end(arguments);                                                             \
    static auto* real = Real<int(const char*, int, ...)>(#name);                   \
    return OpenAt(AT_FDCWD, path, flags, [&] { return real(path, flags, mode); }); \
  }
#define EG_OPENAT(name)                                                                  \
  int name(int folder, const char* path, int flags, ...) {                               \
    va_list arguments;                                                                   \
    va_start(arguments, flags);                                                          \
    const int mode = ModeOf(flags, arguments);                                           \
    va_end(arguments);                                                                   \
    static auto* real = Real<int(int, const char*, int, ...)>(#name);                    \
    return OpenAt(folder, path, flags, [&] { return real(folder, path, flags, mode); }); \
  }

#define EG_FOPEN(name)                                                                          \
  FILE* name(const char* path, const char* mode) {                                              \
    static auto* real = Real<FILE*(const char*, const char*)>(#name);                           \
    const bool was_there = IsThere(AT_FDCWD, path);                                             \
    FILE* file = real(path, mode);                                                              \
    KeepErrno keep;                                                                             \
    struct stat info;                                                                           \
    if (file == nullptr || !Writes(mode) || !TheLog().Covers(PathAt(AT_FDCWD, path)) ||         \
        ::stat(path, &info) != 0)                                                               \
      return file;                                                                              \
    if (!was_there) TheLog().Put(kNew, info.st_ino, 0, PathAt(AT_FDCWD, path), "", nullptr, 0); \
    TheLog().Buffered(info.st_ino);                                                             \
    return file;                                                                                \
  }

extern "C" {

EG_FOPEN(fopen)
EG_FOPEN(fopen64)

int mkstemp(char* path) {
  static auto* real = Real<int(char*)>("mkstemp");
  const int fd = real(path);
  return Opened(fd, AT_FDCWD, path, O_CREAT, false);
}

FILE* fdopen(int fd, const char* mode) noexcept {
  static auto* real = Real<FILE*(int, const char*)>("fdopen");
  if (Watched(fd) && Writes(mode)) TheLog().Buffered(InodeOf(fd));
  return real(fd, mode);
}

int fclose(FILE* file) {
  static auto* real = Real<int(FILE*)>("fclose");
  Forget(::fileno(file));
  return real(file);
}

EG_OPEN(open)
EG_OPEN(open64)
EG_OPENAT(openat)
EG_OPENAT(openat64)

// A build with _FORTIFY_SOURCE calls these functions for an open without a mode.
int __open_2(const char* path, int flags) { return open(path, flags); }
int __open64_2(const char* path, int flags) { return open64(path, flags); }
int __openat_2(int folder, const char* path, int flags) { return openat(folder, path, flags); }
int __openat64_2(int folder, const char* path, int flags) { return openat64(folder, path, flags); }

int close(int fd) {
  static auto* real = Real<int(int)>("close");
  Forget(fd);
  return real(fd);
}

int closedir(DIR* folder) {
  static auto* real = Real<int(DIR*)>("closedir");
  Forget(::dirfd(folder));
  return real(folder);
}

ssize_t write(int fd, const void* data, size_t bytes) {
  static auto* real = Real<ssize_t(int, const void*, size_t)>("write");
  const ssize_t n = real(fd, data, bytes);
  Wrote(fd, data, n, -1);
  return n;
}

ssize_t writev(int fd, const iovec* pieces, int count) {
  static auto* real = Real<ssize_t(int, const iovec*, int)>("writev");
  const ssize_t n = real(fd, pieces, count);
  if (n > 0 && Watched(fd)) {
    std::string all;
    for (int i = 0; i < count; ++i)
      all.append(static_cast<const char*>(pieces[i].iov_base), pieces[i].iov_len);
    Wrote(fd, all.data(), n, -1);
  }
  return n;
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  static auto* real = Real<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  const ssize_t n = real(fd, data, bytes, offset);
  Wrote(fd, data, n, offset);
  return n;
}

ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t offset) {
  static auto* real = Real<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
  const ssize_t n = real(fd, data, bytes, offset);
  Wrote(fd, data, n, offset);
  return n;
}

int ftruncate(int fd, off_t size) {
  static auto* real = Real<int(int, off_t)>("ftruncate");
  return Sized(real(fd, size), fd, size);
}

int ftruncate64(int fd, off64_t size) {
  static auto* real = Real<int(int, off64_t)>("ftruncate64");
  return Sized(real(fd, size), fd, size);
}

int fsync(int fd) {
  static auto* real = Real<int(int)>("fsync");
  return Synced(real(fd), fd);
}

int fdatasync(int fd) {
  static auto* real = Real<int(int)>("fdatasync");
  return Synced(real(fd), fd);
}

int link(const char* from, const char* to) {
  static auto* real = Real<int(const char*, const char*)>("link");
  const int result = real(from, to);
  if (result == 0) Changed(kName, PathAt(AT_FDCWD, to));
  return result;
}

int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  static auto* real = Real<int(int, const char*, int, const char*, int)>("linkat");
  const int result = real(from_folder, from, to_folder, to, flags);
  if (result == 0) Changed(kName, PathAt(to_folder, to));
  return result;
}

int rename(const char* from, const char* to) noexcept {
  static auto* real = Real<int(const char*, const char*)>("rename");
  const int result = real(from, to);
  if (result == 0) Changed(kRename, PathAt(AT_FDCWD, from), PathAt(AT_FDCWD, to));
  return result;
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned int flags) noexcept {
  static auto* real = Real<int(int, const char*, int, const char*, unsigned int)>("renameat2");
  const int result = real(from_folder, from, to_folder, to, flags);
  if (result == 0) Changed(kRename, PathAt(from_folder, from), PathAt(to_folder, to));
  return result;
}

int unlink(const char* path) noexcept {
  static auto* real = Real<int(const char*)>("unlink");
  const int result = real(path);
  if (result == 0) Changed(kUnname, PathAt(AT_FDCWD, path));
  return result;
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  static auto* real = Real<int(int, const char*, int)>("unlinkat");
  const int result = real(folder, path, flags);
  if (result == 0) Changed((flags & AT_REMOVEDIR) != 0 ? kNoFolder : kUnname, PathAt(folder, path));
  return result;
}

int remove(const char* path) noexcept {
  static auto* real = Real<int(const char*)>("remove");
  struct stat info;
  const bool folder = ::lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
  const int result = real(path);
  if (result == 0) Changed(folder ? kNoFolder : kUnname, PathAt(AT_FDCWD, path));
  return result;
}

int mkdir(const char* path, mode_t mode) noexcept {
  static auto* real = Real<int(const char*, mode_t)>("mkdir");
  const int result = real(path, mode);
  if (result == 0) Changed(kFolder, PathAt(AT_FDCWD, path));
  return result;
}

int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  static auto* real = Real<int(int, const char*, mode_t)>("mkdirat");
  const int result = real(folder, path, mode);
  if (result == 0) Changed(kFolder, PathAt(folder, path));
  return result;
}

int rmdir(const char* path) noexcept {
  static auto* real = Real<int(const char*)>("rmdir");
  const int result = real(path);
  if (result == 0) Changed(kNoFolder, PathAt(AT_FDCWD, path));
  return result;
}

}  // extern "C"

#include "common/fs/raw_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "common/fs/descriptor.h"
#include "common/fs/file_system.h"

namespace evergrad::fs {

absl::Status WriteAll(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return FileError(n < 0 ? errno : EIO, "cannot write file", path);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status SyncFolder(const std::string& folder) {
  int fd;
  do {
    fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return FileError(errno, "cannot open folder", folder);
  const Descriptor opened(fd);
  if (::fsync(fd) != 0 && errno != EINVAL) return FileError(errno, "cannot sync folder", folder);
  return absl::OkStatus();
}

}  // namespace evergrad::fs

#include "coordinator/store/holder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/fs/file.h"

namespace evergrad::coordinator {

std::string NetworkFileSystemName(long type) {
  switch (static_cast<unsigned long>(type) & 0xffffffffu) {
    case 0x6969: return "nfs";
    case 0x517b: return "smb";
    case 0xff534d42: return "cifs";
    case 0xfe534d42: return "smb2";
    case 0x5346414f: return "afs";
    case 0x73757245: return "coda";
    case 0x564c: return "ncp";
    case 0x00c36400: return "ceph";
    case 0x01021997: return "9p";
    case 0x0bd00bd0: return "lustre";
    case 0x19830326: return "beegfs";
    case 0x47504653: return "gpfs";
    case 0x01161970: return "gfs2";
    case 0x7461636f: return "ocfs2";
    case 0x65735546: return "fuse";
    case 0x61756673: return "aufs";
    default: return "";
  }
}

absl::Status CheckLocalFileSystem(const std::string& folder) {
  struct statfs info;
  if (::statfs(folder.c_str(), &info) != 0)
    return absl::ErrnoToStatus(errno,
                               absl::StrCat("cannot determine the file system: path=", folder));
  const std::string name = NetworkFileSystemName(info.f_type);
  if (name.empty()) return absl::OkStatus();
  return UserError(absl::FailedPreconditionError(
      absl::StrCat("the state folder is on a network file system, where locks and syncs are not "
                   "reliable; give a folder on a local disk: type=",
                   name, " path=", folder)));
}

absl::StatusOr<std::unique_ptr<Holder>> Holder::Take(const std::string& folder,
                                                     const std::string& who) {
  const std::string path = absl::StrCat(folder, "/holder");
  for (;;) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open file: path=", path));
    std::unique_ptr<Holder> holder(new Holder(path, fd));
    int locked;
    do {
      locked = ::flock(fd, LOCK_EX | LOCK_NB);
    } while (locked != 0 && errno == EINTR);
    if (locked != 0 && errno != EWOULDBLOCK)
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot lock file: path=", path));
    if (locked != 0) {
      const auto text = fs::ReadFile(path, 4096);
      return UserError(absl::FailedPreconditionError(absl::StrCat(
          "another coordinator holds this state folder: holder=",
          text.ok() && !text->empty() ? client::CleanText(absl::StripAsciiWhitespace(*text), 500)
                                      : "unknown",
          " path=", folder)));
    }
    // The previous holder may have removed the file before this process locked it. The lock of a
    // removed file protects nothing, so a new file is locked.
    struct stat ours, there;
    if (::fstat(fd, &ours) != 0 || ::stat(path.c_str(), &there) != 0 ||
        ours.st_ino != there.st_ino || ours.st_dev != there.st_dev)
      continue;
    const std::string text = absl::StrCat(who, "\n");
    // On a full disk the text is truncated. Only the lock matters.
    if (::ftruncate(fd, 0) == 0 && ::pwrite(fd, text.data(), text.size(), 0) < 0 &&
        errno != ENOSPC) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot write file: path=", path));
    }
    return holder;
  }
}

Holder::~Holder() {
  // Only the holder of the lock removes the file.
  struct stat ours, there;
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0 && ::fstat(fd_, &ours) == 0 &&
      ::stat(path_.c_str(), &there) == 0 && ours.st_ino == there.st_ino) {
    ::unlink(path_.c_str());
  }
  ::close(fd_);
}

}  // namespace evergrad::coordinator

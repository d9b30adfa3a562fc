#include "common/fs/link.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/fs/file_system.h"

namespace evergrad::fs {

absl::Status LinkFile(const std::string& from, const std::string& to) {
  const std::string beside = absl::StrCat(to, ".link-", ::getpid());
  ::unlink(beside.c_str());
  if (::link(from.c_str(), beside.c_str()) != 0) return FileError(errno, "cannot link file", from);
  // If `to` is already a name of the same file, rename does nothing and keeps `beside`, which is
  // therefore removed below.
  const int error = std::rename(beside.c_str(), to.c_str()) == 0 ? 0 : errno;
  ::unlink(beside.c_str());
  return error == 0 ? absl::OkStatus() : FileError(error, "cannot rename file", to);
}

}  // namespace evergrad::fs

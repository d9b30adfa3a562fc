#include "common/fs/roots.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/fs/object_uri.h"

namespace evergrad::fs {
namespace {

Descriptor OpenRetry(const std::string& path, int flags) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC);
  } while (fd < 0 && errno == EINTR);
  return Descriptor(fd);
}

std::string Normal(absl::string_view path) {
  std::string normal = std::filesystem::path(std::string(path)).lexically_normal().string();
  while (normal.size() > 1 && normal.back() == '/') normal.pop_back();
  return normal;
}

bool IsIn(absl::string_view path, absl::string_view folder) {
  if (folder == "/") return absl::StartsWith(path, "/");
  return absl::StartsWith(path, folder) &&
         (path.size() == folder.size() || path[folder.size()] == '/');
}

std::optional<std::string> RealPath(const std::string& path) {
  char real[PATH_MAX];
  if (::realpath(path.c_str(), real) == nullptr) return std::nullopt;
  return std::string(real);
}

// Returns whether the object `uri`, a normalized URI, lies in the object `root`. A local root
// contains no object. The key of a normalized URI has neither "." nor "..", so the text decides.
bool IsInObject(absl::string_view uri, absl::string_view root) {
  return IsObjectUri(root) && IsIn(uri, root);
}

// Returns the text with which a root is compared. A root that is no valid URI contains nothing,
// because no normalized URI begins with its text.
std::string NormalRoot(const std::string& folder) {
  if (!IsObjectUri(folder)) return Normal(folder);
  const absl::StatusOr<ObjectUri> object = ParseObjectUri(folder);
  return object.ok() ? ToString(*object) : folder;
}

}  // namespace

Roots Roots::Only(const std::vector<std::string>& folders, std::string advice) {
  Roots roots;
  roots.everything_ = false;
  for (const std::string& folder : folders) roots.folders_.push_back(NormalRoot(folder));
  roots.advice_ = std::move(advice);
  return roots;
}

bool Roots::Names(absl::string_view path) const {
  if (everything_) return true;
  if (IsObjectUri(path)) {
    const absl::StatusOr<ObjectUri> object = ParseObjectUri(path);
    return object.ok() && std::any_of(folders_.begin(), folders_.end(),
                                      [uri = ToString(*object)](const std::string& folder) {
                                        return IsInObject(uri, folder);
                                      });
  }
  const std::string normal = Normal(path);
  return std::any_of(folders_.begin(), folders_.end(), [&](const std::string& folder) {
    if (IsObjectUri(folder)) return false;
    if (IsIn(normal, folder)) return true;
    const auto real = RealPath(folder);  // the path may contain the folder's resolved name
    return real && IsIn(normal, *real);
  });
}

bool Roots::Holds(const Descriptor& pinned) const {
  // The kernel's name of the open file contains no links.
  char real[PATH_MAX];
  const ssize_t bytes =
      ::readlink(absl::StrCat("/proc/self/fd/", pinned.get()).c_str(), real, sizeof(real));
  if (bytes <= 0 || static_cast<std::size_t>(bytes) == sizeof(real)) return false;
  const absl::string_view place(real, static_cast<std::size_t>(bytes));
  return std::any_of(folders_.begin(), folders_.end(), [&](const std::string& folder) {
    // "s3://bucket" is no path, even if the working directory has a folder of this name.
    const auto root = IsObjectUri(folder) ? std::nullopt : RealPath(folder);
    return root && IsIn(place, *root);
  });
}

Descriptor Roots::Open(const std::string& path, int flags) const {
  if (everything_) return OpenRetry(path, flags);
  const auto fail = [](int error) {
    errno = error;
    return Descriptor();
  };
  if (IsObjectUri(path) || !Names(path)) return fail(EXDEV);
  // O_PATH neither reads nor blocks. The descriptor keeps referring to the same file if the path
  // changes.
  const Descriptor pinned = OpenRetry(path, O_PATH | (flags & (O_DIRECTORY | O_NOFOLLOW)));
  if (pinned.get() < 0) {
    // The refusal must not reveal whether a file outside exists. Therefore the nearest existing
    // folder decides whether the path is allowed.
    const int error = errno;
    for (std::string folder = Normal(path); folder.size() > 1;) {
      folder = std::filesystem::path(folder).parent_path().string();
      const Descriptor parent = OpenRetry(folder, O_PATH | O_DIRECTORY);
      if (parent.get() < 0) continue;
      return fail(Holds(parent) ? error : EXDEV);
    }
    return fail(EXDEV);
  }
  if (!Holds(pinned)) return fail(EXDEV);
  if ((flags & O_PATH) != 0) {
    const int copy = ::fcntl(pinned.get(), F_DUPFD_CLOEXEC, 0);
    return Descriptor(copy);
  }
  return OpenRetry(absl::StrCat("/proc/self/fd/", pinned.get()), flags & ~O_NOFOLLOW);
}

absl::Status Roots::Refusal(absl::string_view what, const std::string& path) const {
  if (folders_.empty()) {
    return UserError(absl::PermissionDeniedError(
        absl::StrCat(what, " is not allowed: path=", path, " (", advice_, ")")));
  }
  return UserError(absl::PermissionDeniedError(
      absl::StrCat(what, " lies outside of the allowed folders",
                   IsObjectUri(path) ? "" : " (after following links)", ": path=", path,
                   " folders=", absl::StrJoin(folders_, ","), " (", advice_, ")")));
}

absl::Status MakeRootsAbsolute(absl::string_view flag, std::vector<std::string>* folders) {
  for (std::string& folder : *folders) {
    if (IsObjectUri(folder)) {
      const absl::StatusOr<ObjectUri> object = ParseObjectUri(folder);
      if (!object.ok())
        return UserError(
            absl::InvalidArgumentError(absl::StrCat(flag, ": ", object.status().message())));
      folder = ToString(*object);
      continue;
    }
    std::error_code error;
    if (folder.empty() || !std::filesystem::is_directory(folder, error))
      return UserError(
          absl::InvalidArgumentError(absl::StrCat(flag, ": no such folder: got=`", folder, "`")));
    folder = std::filesystem::absolute(folder, error).lexically_normal().string();
    if (error)
      return UserError(absl::InvalidArgumentError(
          absl::StrCat(flag, ": ", error.message(), ": got=`", folder, "`")));
  }
  return absl::OkStatus();
}

}  // namespace evergrad::fs

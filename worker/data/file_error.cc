#include "worker/data/file_error.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace evergrad::worker {

absl::Status FileError(absl::string_view verb, const std::string& path, int error) {
  const std::string text =
      absl::StrCat("cannot ", verb, " data file: file=", path, " error=", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return UserError(absl::NotFoundError(
          path.find_first_of("*?[") == std::string::npos
              ? text
              : absl::StrCat(text, " (a path names one file: patterns are not expanded)")));
    case EACCES:
    case EPERM: return UserError(absl::PermissionDeniedError(text));
    case EIO:
    case ESTALE:
    case ENXIO:
    case ENODEV:
    case ENOTCONN:
    case EHOSTDOWN:
    case ETIMEDOUT: return UserError(absl::UnavailableError(text));
    default: return UserError(absl::InvalidArgumentError(text));
  }
}

absl::Status BadRecord(const std::string& path, std::uint64_t line, absl::string_view text) {
  return UserError(
      absl::InvalidArgumentError(absl::StrCat("bad record: ", path, ":", line, ": ", text)));
}

}  // namespace evergrad::worker

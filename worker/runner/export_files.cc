#include "worker/runner/export_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/fs/file.h"

namespace evergrad::worker {

absl::StatusOr<std::vector<std::string>> WriteWeights(const std::string& folder, const std::vector<weights::NamedTensor>& tensors) {
  if (folder.empty()) return absl::InvalidArgumentError("no folder to export to");
  // A folder that this worker may not write is the making of whoever set the cluster up: no other attempt will do better.
  const auto refused = [&](absl::string_view why) {
    return UserError(absl::PermissionDeniedError(absl::StrCat(
        "the runs folder cannot be written by this worker; workers need the coordinator's --runs folder as a shared, writable one: folder=", folder,
        " error=", why)));
  };
  if (const absl::Status made = fs::MakeDirectories(folder); absl::IsPermissionDenied(made)) {
    return refused(made.message());
  } else if (!made.ok()) {
    return made;
  }
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0 && (errno == EACCES || errno == EROFS))
    return refused(std::strerror(errno));
  std::error_code error;
  const std::string absolute = std::filesystem::absolute(folder, error).lexically_normal().string();
  if (error) return absl::InternalError(absl::StrCat("cannot name folder: folder=", folder, " error=", error.message()));
  std::vector<std::string> paths;
  for (const auto& [name, write] : {std::pair{"weights.npz", &weights::WriteNpz}, std::pair{"weights.safetensors", &weights::WriteSafetensors}}) {
    paths.push_back(absl::StrCat(absolute, "/", name));
    EG_RETURN_IF_ERROR(write(paths.back(), tensors));
  }
  return paths;
}

}  // namespace evergrad::worker

#include "coordinator/store/orphaned_wal.h"

#include <sys/stat.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/fs/file.h"
#include "common/fs/raw_file.h"

namespace evergrad::coordinator {
namespace {

constexpr int kNamesMax = 1000;

std::uint64_t BytesOf(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

}  // namespace

std::uint64_t OrphanedWalBytes(const std::string& database) {
  return BytesOf(database) > 0 ? 0 : BytesOf(database + "-wal");
}

absl::StatusOr<std::string> SetWalAside(const std::string& database) {
  const std::string wal = database + "-wal";
  for (int n = 1; n <= kNamesMax; ++n) {
    std::string to = absl::StrCat(wal, ".orphaned", n == 1 ? "" : absl::StrCat("-", n));
    if (fs::Exists(to)) continue;
    std::error_code error;
    std::filesystem::rename(wal, to, error);
    if (error)
      return absl::InternalError(
          absl::StrCat("cannot rename: from=", wal, " to=", to, " reason=", error.message()));
    // An error of the sync is ignored. If a power failure undoes the rename, the next start finds
    // the orphaned file again and repeats the rename.
    fs::SyncFolder(std::filesystem::path(to).parent_path().string()).IgnoreError();
    return to;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("too many orphaned -wal files: file=", wal, " max=", kNamesMax));
}

}  // namespace evergrad::coordinator

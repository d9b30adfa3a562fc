// Makes the paths of checkpoints, and writes and deletes their files.
#include "coordinator/checkpoints/checkpoints.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/shard_file.h"

namespace evergrad::coordinator {
namespace {

// Limit of the numbers that are tried for one manifest. A higher number is tried only if another
// writer has used the number before it, which should never happen.
constexpr int kNumbersTried = 64;

void Warn(std::vector<absl::Status>* warnings, absl::Status status) {
  if (warnings->size() < kWarningsMax) warnings->push_back(std::move(status));
}

// Returns whether reading the file again later would give the same result.
bool IsDamage(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsUnimplemented(status);
}

}  // namespace

std::string CheckpointFolder(const config::CheckpointSpec& spec, absl::string_view runs_folder,
                             absl::string_view job_name, JobUid uid) {
  if (spec.directory.empty()) return fs::JoinUri(runs_folder, "checkpoint");
  return fs::JoinUri(spec.directory, absl::StrCat(job_name, "-", JobUidString(uid)));
}

bool SaveErrorIsFinal(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsUnimplemented(status) ||
         absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
         absl::IsAlreadyExists(status);
}

absl::StatusOr<Saved> SaveManifest(fs::FileSystem& files, const SaveRequest& request) {
  Saved saved;
  v1::Manifest manifest = request.manifest;
  manifest.set_complete(snapshot::DoneSetsAreEqual(manifest));
  EG_RETURN_IF_ERROR(files.MakeFolders(request.folder));
  EG_ASSIGN_OR_RETURN(const std::vector<fs::ListedFile> entries, files.List(request.folder));
  std::vector<std::uint64_t> numbers;
  for (const fs::ListedFile& entry : entries)
    if (const auto number = snapshot::ParseManifestName(entry.name); number && !entry.is_folder)
      numbers.push_back(*number);
  std::sort(numbers.rbegin(), numbers.rend());
  if (!numbers.empty() && numbers[0] > std::numeric_limits<std::uint64_t>::max() - kNumbersTried)
    return absl::FailedPreconditionError(
        absl::StrCat("the numbers of manifests are exhausted: folder=", request.folder,
                     " highest=", numbers[0]));

  absl::Status written;
  saved.number = numbers.empty() ? 1 : numbers[0] + 1;
  for (int i = 0; i < kNumbersTried; ++i, ++saved.number) {
    manifest.set_number(saved.number);
    written = snapshot::WriteManifest(files, request.folder, manifest);
    if (!absl::IsAlreadyExists(written)) break;
  }
  EG_RETURN_IF_ERROR(written);
  saved.uri = fs::JoinUri(request.folder, snapshot::ManifestName(saved.number));
  EG_RETURN_IF_ERROR(snapshot::ReadManifest(files, saved.uri).status());

  const auto name_files = [&](const v1::Manifest& m) {
    for (const v1::ShardFile& shard : m.shards())
      if (!shard.file().empty()) saved.named.insert(shard.file());
  };
  name_files(manifest);
  std::uint32_t kept = 1;
  bool all_read = true;
  for (const std::uint64_t number : numbers) {
    const std::string uri = fs::JoinUri(request.folder, snapshot::ManifestName(number));
    if (kept >= std::max<std::uint32_t>(request.keep, 1)) {
      if (const absl::Status removed = files.Remove(uri);
          !removed.ok() && !absl::IsNotFound(removed)) {
        // Readers may still use a manifest that could not be deleted, so its files stay, too.
        Warn(&saved.warnings, removed);
        if (const auto old = snapshot::ReadManifest(files, uri); old.ok())
          name_files(*old);
        else
          all_read = all_read && IsDamage(old.status());
      }
      continue;
    }
    const auto old = snapshot::ReadManifest(files, uri);
    if (old.ok()) {
      name_files(*old);
      ++kept;
    } else if (!absl::IsNotFound(old.status())) {
      Warn(&saved.warnings, old.status());
      all_read = all_read && absl::IsDataLoss(old.status());
    }
  }
  if (!all_read) {
    for (const fs::ListedFile& entry : entries)
      if (snapshot::ParseShardFileName(entry.name)) saved.named.insert(entry.name);
  }
  return saved;
}

absl::StatusOr<std::size_t> SweepFolder(fs::FileSystem& files, const SweepRequest& request) {
  const auto entries = files.List(request.folder);
  if (absl::IsNotFound(entries.status())) return 0;
  if (!entries.ok()) return entries.status();
  std::size_t gone = 0;
  for (const fs::ListedFile& entry : *entries) {
    const auto key = snapshot::ParseShardFileName(entry.name);
    if (!key || entry.is_folder || request.needed.count(entry.name) != 0) continue;
    const auto newest = request.newest.find(key->shard);
    if (newest == request.newest.end() || std::pair(key->epoch, key->lsn) > newest->second)
      continue;
    const absl::Status removed = files.Remove(fs::JoinUri(request.folder, entry.name));
    if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
    gone += removed.ok() ? 1 : 0;
  }
  return gone;
}

}  // namespace evergrad::coordinator

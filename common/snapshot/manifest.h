// Manifests: which files make a checkpoint (LEDGER lines 27, 28). One small file each, never
// written over; the newest whole one counts, a damaged one is passed over and named (P6).
//
// Blocking functions, thread-safe as the FileSystem is. DataLoss: damaged, with path, offset, want
// and got. Unimplemented: newer version.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/fs/file_system.h"
#include "common/snapshot/shard_file.h"
#include "evergrad/v1/snapshot.pb.h"

namespace evergrad::snapshot {

inline constexpr std::uint64_t kManifestBytesMax =
    256u << 20;  // 10,000 shards with 1,000 intervals each are 150 MB

// "manifest-000000000012.egmanifest": by name is by number.
std::string ManifestName(std::uint64_t number);
std::optional<std::uint64_t> ParseManifestName(absl::string_view name);

// InvalidArgument: what no reader would accept (below).
absl::StatusOr<std::string> EncodeManifest(const v1::Manifest& manifest);
// `path` is for messages. Checked: one entry for each shard of the plan, in its order; file names
// that are names; hashes of 32 bytes; sets; entries without a file empty; `complete` as the done
// sets say.
absl::StatusOr<v1::Manifest> DecodeManifest(absl::string_view bytes, absl::string_view path);

// Writes it as folder/ManifestName(number). AlreadyExists: that number is taken.
absl::Status WriteManifest(fs::FileSystem& files, absl::string_view folder,
                           const v1::Manifest& manifest);
absl::StatusOr<v1::Manifest> ReadManifest(fs::FileSystem& files, absl::string_view uri);

// Numbers of the manifests in a folder, rising. Whether they are whole shows when they are read.
absl::StatusOr<std::vector<std::uint64_t>> ListManifests(fs::FileSystem& files,
                                                         absl::string_view folder);

// The newest manifest that can be read. The files that it names are not looked at.
struct NewestManifest {
  std::string uri;
  v1::Manifest manifest;
  std::vector<absl::Status> passed_over;  // newer ones, newest first, and why
};
// NotFound: no manifest, or none that can be read (each is named).
absl::StatusOr<NewestManifest> FindNewestManifest(fs::FileSystem& files, absl::string_view folder);

// Whether all done sets are equal.
bool DoneSetsAreEqual(const v1::Manifest& manifest);

// One file of a manifest against its entry: job, plan, cut, epoch, start, lsn, sets, size, hash.
// `whole`: every byte; otherwise both ends and the ledger.
absl::StatusOr<ShardFileReport> CheckShardOf(fs::FileSystem& files, absl::string_view folder,
                                             const v1::Manifest& manifest, int index, bool whole);

}  // namespace evergrad::snapshot

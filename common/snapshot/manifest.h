// Manifests: lists of the files that form a checkpoint (LEDGER lines 27, 28). Each manifest is one
// small file that is never overwritten. The newest undamaged manifest is used; damaged manifests
// are skipped and reported (promise P6 of ARCHITECTURE).
//
// The functions block, and are as thread-safe as the FileSystem. A damaged manifest gives DataLoss
// with path, offset, expected and actual value. A manifest of a newer version gives Unimplemented.
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

// Limit of a manifest's size. A manifest of 10,000 shards with 1,000 intervals each has 150 MB.
inline constexpr std::uint64_t kManifestBytesMax = 256u << 20;

// Returns "manifest-000000000012.egmanifest". The order of names is the order of numbers.
std::string ManifestName(std::uint64_t number);
std::optional<std::uint64_t> ParseManifestName(absl::string_view name);

// Returns InvalidArgument for a manifest that DecodeManifest would refuse.
absl::StatusOr<std::string> EncodeManifest(const v1::Manifest& manifest);
// Decodes and checks a manifest. `path` is for messages. There must be one entry per shard of the
// plan, in the order of the plan. File names must be valid, hashes must have 32 bytes, and sets
// must be well-formed. Entries without a file must be empty, and `complete` must agree with the
// done sets.
absl::StatusOr<v1::Manifest> DecodeManifest(absl::string_view bytes, absl::string_view path);

// Writes the manifest as folder/ManifestName(number). Returns AlreadyExists if the number is taken.
absl::Status WriteManifest(fs::FileSystem& files, absl::string_view folder,
                           const v1::Manifest& manifest);
absl::StatusOr<v1::Manifest> ReadManifest(fs::FileSystem& files, absl::string_view uri);

// Returns the numbers of the manifests in a folder, in rising order. Damage is detected only when a
// manifest is read.
absl::StatusOr<std::vector<std::uint64_t>> ListManifests(fs::FileSystem& files,
                                                         absl::string_view folder);

// The newest readable manifest. The files that it names are not checked.
struct NewestManifest {
  std::string uri;
  v1::Manifest manifest;
  // Newer manifests that were skipped, newest first, with the reasons.
  std::vector<absl::Status> passed_over;
};
// Returns NotFound if there is no readable manifest; the error names each unreadable manifest.
absl::StatusOr<NewestManifest> FindNewestManifest(fs::FileSystem& files, absl::string_view folder);

// Returns whether all done sets are equal.
bool DoneSetsAreEqual(const v1::Manifest& manifest);

// Compares one file of a manifest with its entry: job, plan, cut, epoch, start, lsn, sets, size,
// hash. With `whole` the function reads every byte, otherwise only both ends of the file and the
// ledger.
absl::StatusOr<ShardFileReport> CheckShardOf(fs::FileSystem& files, absl::string_view folder,
                                             const v1::Manifest& manifest, int index, bool whole);

}  // namespace evergrad::snapshot

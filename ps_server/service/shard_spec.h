// Converts and checks the coordinator's description of a shard and of its file. The result is the
// settings of the shard at this server. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "evergrad/v1/session.pb.h"
#include "evergrad/v1/types.pb.h"
#include "ps_server/shard/shard.h"
#include "ps_server/snapshot/cut_file.h"

namespace evergrad::ps_server {

// Converts the description. Returns InvalidArgument for a dtype other than float32, a wire type
// that is not implemented, a shape that has more than 8 dimensions or overflows, and a name that is
// empty or too long. The shard itself checks rows, initializer and optimizer.
absl::StatusOr<ShardSettings> ShardSettingsOf(JobUid job, const v1::ShardSpec& spec);
// Returns the properties that the file must have, or nullopt if the SHA-256 has a wrong length.
std::optional<snapshot::ShardFileReader::Expected> ExpectedFile(std::uint64_t bytes,
                                                                const std::string& sha256);
// Returns the source of a shard. The caller adds the parts that only an Assign has (settings,
// epoch, start, refused). Returns InvalidArgument if the snapshot has no path, or if its SHA-256 or
// its closures are malformed.
absl::StatusOr<RestoreOptions> RestoreOptionsOf(const v1::SnapshotSource& source);

}  // namespace evergrad::ps_server

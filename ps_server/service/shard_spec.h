// Converts the coordinator's description of a shard into the settings of this role. The description
// is not trusted. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "evergrad/v1/types.pb.h"
#include "ps_server/shard/shard.h"

namespace evergrad::ps_server {

// Converts the description. InvalidArgument for a dtype other than float32, a wire type that is not
// built, a shape that has more than 8 dimensions or overflows, and a name that is empty or too
// long. The shard itself checks rows, initializer and optimizer.
absl::StatusOr<ShardSettings> ShardSettingsOf(JobUid job, const v1::ShardSpec& spec);

}  // namespace evergrad::ps_server

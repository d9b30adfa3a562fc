// A shard as the coordinator describes it, as the settings that this role works with. Nothing read
// is trusted. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "evergrad/v1/types.pb.h"
#include "ps_server/shard/shard.h"

namespace evergrad::ps_server {

// InvalidArgument: another dtype than float32, a wire type that is not built, a shape of more than
// 8 dimensions or that overflows, a name of no or too many bytes. What the shard itself checks
// (rows, initialiser, optimizer) is left to it.
absl::StatusOr<ShardSettings> ShardSettingsOf(JobUid job, const v1::ShardSpec& spec);

}  // namespace evergrad::ps_server

// The number of a shard within its job, as a key for tables that have the shards of several jobs.
#pragma once

#include <compare>

#include "common/base/ids.h"

namespace evergrad::ps_server {

struct ShardKey {
  JobUid job;
  ShardId shard;
  friend auto operator<=>(const ShardKey&, const ShardKey&) = default;
};

}  // namespace evergrad::ps_server

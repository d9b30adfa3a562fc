// Assigns shards to servers. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"

namespace evergrad::coordinator {

struct ShardSize {
  ShardId shard;
  std::uint64_t bytes = 0;  // values and optimizer state
};
struct ServerLoad {
  std::string identity;
  std::uint64_t bytes = 0;  // bytes that the server already holds
};
struct Placement {
  ShardId shard;
  std::string server;
};

// Assigns the largest shard first, each to the least loaded server. Ties go to the lower shard
// number and to the earlier server in `servers`, so equal input gives equal placement. The result
// is ordered by shard number. The result is empty if there are no servers.
std::vector<Placement> PlaceShards(std::vector<ShardSize> shards, std::vector<ServerLoad> servers);

}  // namespace evergrad::coordinator

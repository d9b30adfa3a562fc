// Which server holds which shard. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"

namespace evergrad::coordinator {

struct ShardSize {
  ShardId shard;
  std::uint64_t bytes = 0;  // values and slots
};
struct ServerLoad {
  std::string identity;
  std::uint64_t bytes = 0;  // what it holds already
};
struct Placement {
  ShardId shard;
  std::string server;
};

// The biggest shard first to the least loaded server; equals by lower number and by order in
// `servers`, so the same input gives the same placement. In the order of shard numbers. Empty when
// there are no servers.
std::vector<Placement> PlaceShards(std::vector<ShardSize> shards, std::vector<ServerLoad> servers);

}  // namespace evergrad::coordinator

#include "coordinator/scheduler/placement.h"

#include <algorithm>

namespace evergrad::coordinator {

std::vector<Placement> PlaceShards(std::vector<ShardSize> shards, std::vector<ServerLoad> servers) {
  if (servers.empty()) return {};
  std::sort(shards.begin(), shards.end(), [](const ShardSize& a, const ShardSize& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.shard < b.shard;
  });
  // If two servers have equal bytes, the server with fewer shards is chosen. Shards without bytes
  // are therefore also spread.
  std::vector<std::uint64_t> counts(servers.size(), 0);
  std::vector<Placement> placements;
  placements.reserve(shards.size());
  for (const ShardSize& shard : shards) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < servers.size(); ++i) {
      if (servers[i].bytes < servers[best].bytes ||
          (servers[i].bytes == servers[best].bytes && counts[i] < counts[best]))
        best = i;
    }
    servers[best].bytes += shard.bytes;
    ++counts[best];
    placements.push_back({shard.shard, servers[best].identity});
  }
  std::sort(placements.begin(), placements.end(),
            [](const Placement& a, const Placement& b) { return a.shard < b.shard; });
  return placements;
}

}  // namespace evergrad::coordinator

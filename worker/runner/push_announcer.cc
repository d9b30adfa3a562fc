#include "worker/runner/push_announcer.h"

#include "worker/runner/request_split.h"

namespace evergrad::worker {

void PushAnnouncer::Announce(const std::vector<ShardId>& shards, bool pulls, const ShardMap& map,
                             const std::function<bool(const std::string&)>& in_parts) {
  announced_.clear();
  std::map<std::string, std::vector<SectionSize>> sections;
  for (const ShardId shard : shards) {
    if (shard.value() >= map.shards.size() ||
        !endpoints_->contains(map.shards[shard.value()].server))
      continue;
    sections[map.shards[shard.value()].server].push_back(
        PushSize(shard.value(), layout_->slice(shard).wire_bytes()));
  }
  for (std::uint32_t shard = 0;
       pulls && shard < layout_->dense_shards() && shard < map.shards.size(); ++shard) {
    const auto it = sections.find(map.shards[shard].server);
    if (it != sections.end())
      it->second.push_back(PullSize(shard, layout_->slice(ShardId(shard)).wire_bytes()));
  }
  for (auto& [server, all] : sections) {
    const v1::Endpoint& endpoint = endpoints_->at(server);
    const SplitPlan plan =
        SplitRequests(client::RequestLimits::Of(endpoint), all, in_parts(server));
    if (plan.requests.empty()) continue;
    std::vector<SectionSize> first;  // the part that is sent first
    for (const std::size_t i : plan.requests.front()) first.push_back(all[i]);
    const RequestSize size = SizeOf(first);
    announced_[server] =
        client_->Announce(endpoint, size.request_bytes, size.response_bytes, deadline_);
  }
}

client::ParameterClient::Announced PushAnnouncer::Take(const std::string& server) {
  auto node = announced_.extract(server);
  return node.empty() ? nullptr : std::move(node.mapped());
}

}  // namespace evergrad::worker

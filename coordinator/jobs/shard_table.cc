#include "coordinator/jobs/shard_table.h"

#include <algorithm>

namespace evergrad::coordinator {

JobServer* ShardTable::Find(TaskId task) {
  const auto found = servers_.find(task);
  return found == servers_.end() ? nullptr : &found->second;
}

const JobServer* ShardTable::ServerOf(absl::string_view identity) const {
  if (identity.empty()) return nullptr;
  for (const auto& [task, server] : servers_) {
    if (server.identity == identity) return &server;
  }
  return nullptr;
}

ShardQueries::Servers ShardTable::Ready() const {
  ShardQueries::Servers ready;
  for (const auto& [task, server] : servers_) {
    if (server.ready) ready.emplace(task, server.identity);
  }
  return ready;
}

void ShardTable::Plan(const std::vector<std::uint64_t>& bytes) {
  shards_.assign(bytes.size(), Shard());
  for (std::size_t p = 0; p < bytes.size(); ++p) shards_[p].bytes = bytes[p];
}

void ShardTable::Unplace(ShardId shard) {
  shards_[shard.value()].held = false;
  unplaced_.insert(shard);
}

void ShardTable::Give(ShardId shard, bool held) {
  shards_[shard.value()].held = held;
  unplaced_.erase(shard);
}

bool ShardTable::AllHeld() const {
  return placed_ && unplaced_.empty() &&
         std::all_of(shards_.begin(), shards_.end(), [](const Shard& s) { return s.held; });
}

void ShardTable::Clear() {
  servers_.clear();
  awaited_.clear();
  unplaced_.clear();
}

}  // namespace evergrad::coordinator

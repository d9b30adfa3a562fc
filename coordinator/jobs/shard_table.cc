#include "coordinator/jobs/shard_table.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/client/protocol.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kHostBytesMax = 256, kReasonBytesMax = 200;

}  // namespace

absl::StatusOr<std::vector<ClosureBook::HeldShard>> HeldShardsOf(const v1::Hello& hello,
                                                                 JobUid job) {
  std::vector<ClosureBook::HeldShard> held;
  for (const v1::HeldShard& h : hello.shards()) {
    if (h.job_uid() != job.value()) continue;
    ClosureBook::HeldShard& one = held.emplace_back();
    one.shard = ShardId(h.shard());
    one.epoch = client::FromProto<ShardEpoch>(h.epoch());
    one.start = client::FromProto<MapVersion>(h.start());
    one.loading = h.loading();
    one.stopped_in = h.stopped_in();
    EG_ASSIGN_OR_RETURN(one.done, client::FromProto(h.done()));
    EG_ASSIGN_OR_RETURN(one.refused, client::FromProto(h.refused()));
  }
  return held;
}

JobServer JobServerOf(TaskId task, const std::string& identity,
                      const std::vector<ClosureBook::HeldShard>& held, const v1::Hello& hello) {
  JobServer server;
  server.task = task;
  server.identity = identity;
  server.endpoint = hello.endpoint();
  server.host = client::CleanText(hello.host(), kHostBytesMax);
  server.process = hello.process_uid();
  for (const ClosureBook::HeldShard& one : held) {
    if (one.loading) server.loading.insert(one.shard.value());
    if (one.stopped_in != 0) server.stopped.insert(one.shard.value());
  }
  server.leaving = client::CleanText(hello.leaving(), kReasonBytesMax);
  server.drains = !server.leaving.empty();
  server.cordoned = hello.cordoned();
  return server;
}

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

void ShardTable::Restore(const ClosureBook& book) {
  for (std::uint32_t p = 0; p < size(); ++p) {
    const ShardEpoch epoch = book.durable().map[p].epoch;
    if (epoch != ShardEpoch{}) placed_ = true;
    // If the newest file is from the present epoch, its owner wrote it after loading the shard.
    // Otherwise the newest file is the file of the newest Assign, and the owner may still be
    // reading it.
    const Snapshot* newest = book.NewestSnapshot(ShardId(p));
    if (newest != nullptr && (newest->resumed || newest->epoch != epoch))
      shards_[p].snapshot = newest->Uri();
  }
}

void ShardTable::Clear() {
  servers_.clear();
  awaited_.clear();
  unplaced_.clear();
}

}  // namespace evergrad::coordinator

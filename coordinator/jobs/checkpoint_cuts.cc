#include "coordinator/jobs/checkpoint_cuts.h"

#include "common/client/protocol.h"

namespace evergrad::coordinator {
namespace {

constexpr int kShardsPerOrder = 4096;  // keeps a message far below the transport's limit

}  // namespace

void CheckpointCuts::Order(const std::string& folder, const std::function<bool(ShardId)>& skips) {
  awaited_.clear();
  for (const auto& [task, server] : shards_.servers()) {
    if (!server.ready) continue;
    v1::CoordinatorMessage message;
    v1::CutShards* cut = message.mutable_cut();
    const auto send = [&, to = task] {
      if (cut->shards_size() == 0) return;
      cut->set_job_uid(id_.uid.value());
      cut->set_folder(folder);
      cut->set_plan_fingerprint(plan_message_.fingerprint());
      host_->Send(to, message);
      message.Clear();
      cut = message.mutable_cut();
    };
    for (const ShardId p : book_->ShardsOf(server.identity)) {
      if (!shards_[p].held || shards_.unplaced().count(p) != 0 || skips(p)) continue;
      const ShardEpoch epoch = book_->durable().map[p.value()].epoch;
      v1::CutShard* one = cut->add_shards();
      one->set_shard(p.value());
      *one->mutable_epoch() = client::ToProto(epoch);
      awaited_[p] = {epoch, task};
      if (cut->shards_size() == kShardsPerOrder) send();
    }
    send();
  }
}

void CheckpointCuts::DropLost() {
  std::erase_if(awaited_, [&](const auto& entry) {
    const ShardOwner& owner = book_->durable().map[entry.first.value()];
    const JobServer* server = shards_.Find(entry.second.task);
    return owner.epoch != entry.second.epoch || server == nullptr || !server->ready ||
           server->identity != owner.server;
  });
}

bool CheckpointCuts::Awaits(ShardId shard, ShardEpoch epoch) const {
  const auto found = awaited_.find(shard);
  return found != awaited_.end() && found->second.epoch == epoch;
}

}  // namespace evergrad::coordinator

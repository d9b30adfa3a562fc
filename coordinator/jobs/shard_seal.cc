#include "coordinator/jobs/shard_seal.h"

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"

namespace evergrad::coordinator {

void ShardSeal::Begin() {
  deadline_ = host_->Now() + options_.seal_timeout;
  if (!book_ || !shards_.placed()) return;
  for (std::uint32_t p = 0; p < shards_.size(); ++p) {
    const ShardId shard(p);
    if (shards_.IsGone(book_->durable().map[p].server) || shards_.unplaced().contains(shard))
      continue;
    unsealed_.insert(shard);
    Send(shard);
  }
}

void ShardSeal::Send(ShardId shard) {
  const ShardOwner& owner = book_->durable().map[shard.value()];
  const JobServer* server = shards_.ServerOf(owner.server);
  if (server == nullptr) return;
  v1::CoordinatorMessage message;
  v1::Seal* seal = message.mutable_seal();
  seal->set_job_uid(id_.uid.value());
  seal->set_shard(shard.value());
  *seal->mutable_epoch() = client::ToProto(owner.epoch);
  host_->Send(server->task, message);
}

void ShardSeal::OnSealed(TaskId task, const v1::Sealed& sealed) {
  if (!book_ || sealed.shard() >= shards_.size()) return;
  const ShardOwner& owner = book_->durable().map[sealed.shard()];
  if (owner.epoch != client::FromProto<ShardEpoch>(sealed.epoch())) return;
  if (const JobServer* server = shards_.Find(task);
      server == nullptr || server->identity != owner.server)
    return host_->ForeignMessage(task, "Sealed for a shard of another server");
  unsealed_.erase(ShardId(sealed.shard()));
}

void ShardSeal::OnReady(const JobServer& server) {
  for (const ShardId shard : unsealed_) {
    if (book_->durable().map[shard.value()].server == server.identity) Send(shard);
  }
}

bool ShardSeal::IsComplete() {
  // A process that is gone applies no more updates.
  std::erase_if(unsealed_, [&](ShardId shard) {
    return shards_.IsGone(book_->durable().map[shard.value()].server);
  });
  if (unsealed_.empty()) return true;
  if (host_->Now() < deadline_) return false;
  job_.Event("warning",
             absl::StrCat(
                 "servers did not answer while the job was sealed: ", unsealed_.size(),
                 " shards are taken from their servers, and later updates of these shards have no "
                 "effect"));
  Record record;
  for (const ShardId shard : unsealed_) AppendRecord(book_->Unmap(shard).record, &record);
  unsealed_.clear();
  return job_.Persist(record);
}

std::string ShardSeal::WaitingFor() const {
  return unsealed_.empty()
             ? ""
             : absl::StrCat("servers to seal their shards: ", unsealed_.size(), " left");
}

}  // namespace evergrad::coordinator

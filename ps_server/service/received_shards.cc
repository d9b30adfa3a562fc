#include "ps_server/service/received_shards.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "ps_server/service/peer_image.h"
#include "ps_server/service/shard_spec.h"

namespace evergrad::ps_server {

absl::Status ReceivedShards::Begin(const v1::ReceiveShard& receive) {
  const ShardKey key{JobUid(receive.job_uid()), ShardId(receive.spec().shard())};
  const auto from = client::FromProto<ShardEpoch>(receive.epoch());
  if (options_.peers == nullptr)
    return absl::UnimplementedError("this server cannot receive shards from other servers");
  RestoreOptions what;
  EG_ASSIGN_OR_RETURN(what.settings, ShardSettingsOf(key.job, receive.spec()));
  what.epoch = from;
  what.start = client::FromProto<MapVersion>(receive.start());
  // This URI is only a name for messages, and opens no file.
  what.source.uri = absl::StrCat("ps_server/", receive.from().server(), ":", receive.spec().shard(),
                                 "@", from.ToString());
  what.source.expected = ExpectedFile(receive.bytes(), receive.sha256());
  if (!what.source.expected) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the SHA-256 of an image has a wrong length: want=", sizeof(snapshot::Sha256Digest),
        " got=", receive.sha256().size()));
  }
  what.source.file_job = key.job;
  what.source.plan_fingerprint = receive.plan_fingerprint();
  Forget(key);
  const std::uint64_t number = ++orders_;
  PeerImage image;
  image.unwanted = readings_.emplace(key, Reading{from, number}).first->second.unwanted;
  image.client = options_.peers;
  image.clock = options_.clock;
  image.server = receive.from();
  image.job = key.job;
  image.shard = key.shard;
  image.epoch = from;
  image.bytes = receive.bytes();
  // The order shares the file system, which is destroyed with the order.
  const std::shared_ptr<fs::FileSystem> files = MakePeerFileSystem(std::move(image));
  what.source.files = files.get();
  what.source.budget = options_.jobs->TablesOf(key.job);
  Restorer::Order order;
  order.what = std::move(what);
  order.done = [this, key, number, files](absl::StatusOr<std::unique_ptr<Shard>> shard) {
    // The shard is in a shared_ptr, because a posted task must be copyable.
    auto given = std::make_shared<absl::StatusOr<std::unique_ptr<Shard>>>(std::move(shard));
    options_.executor->Post([this, key, number, given] { OnRead(key, number, std::move(*given)); });
  };
  absl::Status status = options_.restorer->Submit(std::move(order));
  if (!status.ok()) readings_.erase(key);
  return status;
}

void ReceivedShards::OnRead(const ShardKey& key, std::uint64_t number,
                            absl::StatusOr<std::unique_ptr<Shard>> shard) {
  const auto reading = readings_.find(key);
  // If the order was replaced or cancelled, the shard is no longer needed.
  if (reading == readings_.end() || reading->second.number != number) return;
  const ShardEpoch from = reading->second.from;
  const absl::Status status = shard.status();
  if (status.ok())
    reading->second.shard = *std::move(shard);
  else
    readings_.erase(reading);
  if (status.ok() && options_.failpoints != nullptr) options_.failpoints->At("move.received");
  options_.received(key, from, status);
}

std::unique_ptr<Shard> ReceivedShards::Take(const ShardKey& key, ShardEpoch from) {
  const auto reading = readings_.find(key);
  if (reading == readings_.end() || reading->second.from != from) return nullptr;
  std::unique_ptr<Shard> shard = std::move(reading->second.shard);
  if (shard != nullptr) readings_.erase(reading);
  return shard;
}

ReceivedShards::Readings::iterator ReceivedShards::Erase(Readings::iterator reading) {
  reading->second.unwanted->store(true, std::memory_order_relaxed);
  if (reading->second.shard == nullptr)
    options_.restorer->Cancel(reading->first.job, reading->first.shard);
  return readings_.erase(reading);
}

void ReceivedShards::Forget(const ShardKey& key) {
  if (const auto reading = readings_.find(key); reading != readings_.end()) Erase(reading);
}

void ReceivedShards::Forget(const ShardKey& key, ShardEpoch from) {
  const auto reading = readings_.find(key);
  if (reading != readings_.end() && reading->second.from == from) Erase(reading);
}

void ReceivedShards::ForgetJob(JobUid job) {
  auto reading = readings_.lower_bound({job, ShardId(0)});
  while (reading != readings_.end() && reading->first.job == job) reading = Erase(reading);
}

void ReceivedShards::ForgetAll() {
  while (!readings_.empty()) Erase(readings_.begin());
}

}  // namespace evergrad::ps_server

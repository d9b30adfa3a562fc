#include "ps_server/service/cut_orders.h"

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"

namespace evergrad::ps_server {
namespace {

v1::TaskMessage DurableMessage(const ShardKey& key, ShardEpoch epoch) {
  v1::TaskMessage message;
  v1::ShardDurable* durable = message.mutable_shard_durable();
  durable->set_job_uid(key.job.value());
  durable->set_shard(key.shard.value());
  *durable->mutable_epoch() = client::ToProto(epoch);
  return message;
}

void FillShardFile(const DurableCut& cut, v1::ShardFile* file) {
  file->set_shard(cut.shard.value());
  file->set_file(cut.file);
  file->set_bytes(cut.digest.bytes);
  file->set_sha256(cut.digest.sha256.data(), cut.digest.sha256.size());
  *file->mutable_epoch() = client::ToProto(cut.epoch);
  *file->mutable_start() = client::ToProto(cut.start);
  file->set_lsn(cut.lsn);
  file->set_vlsn(cut.vlsn);
  *file->mutable_done() = client::ToProto(cut.done);
  *file->mutable_refused() = client::ToProto(cut.refused);
}

}  // namespace

void CutOrders::Submit(const v1::CutShards& cut) {
  const auto round = std::make_shared<Round>();
  round->job = JobUid(cut.job_uid());
  round->begin = options_.clock->Now();
  round->shards = round->left = static_cast<std::size_t>(cut.shards_size());
  for (const v1::CutShard& wanted : cut.shards()) {
    const Order order{{round->job, ShardId(wanted.shard())},
                      client::FromProto<ShardEpoch>(wanted.epoch()),
                      options_.sender->session(),
                      round};
    if (const absl::Status status = SubmitOne(order, cut); !status.ok()) OnEnded(order, status);
  }
}

absl::Status CutOrders::SubmitOne(const Order& order, const v1::CutShards& cut) {
  const ShardKey key = order.key;
  const HeldShard* const held = options_.directory->Find(key);
  if (held == nullptr || held->epoch != order.epoch) {
    return absl::NotFoundError(absl::StrCat(
        "the shard is not held at this epoch: shard=", key.shard.ToString(), " epoch=",
        order.epoch.ToString(), " held=", held == nullptr ? "none" : held->epoch.ToString()));
  }
  if (held->restoring()) {
    return absl::UnavailableError(absl::StrCat(
        "the shard is being restored: shard=", key.shard.ToString(), " file=", held->file));
  }
  if (cut.folder().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the order for a snapshot names no folder: shard=", key.shard.ToString()));
  }
  SnapshotWriter::Order write;
  write.job = key.job;
  write.shard = key.shard;
  write.folder = cut.folder();
  write.plan_fingerprint = cut.plan_fingerprint();
  write.bytes = held->value_bytes + held->state_bytes;
  write.take = [shard_executor = &options_.shard_executor(key.shard), key,
                epoch = order.epoch](ShardExecutor::CutReady ready) {
    shard_executor->Cut(key, epoch, std::move(ready));
  };
  write.done = [this, order](absl::StatusOr<DurableCut> result) {
    options_.executor->Post([this, order, result = std::move(result)] { OnEnded(order, result); });
  };
  write.dropped = [this, order](const absl::Status& cause) {
    options_.executor->Post([this, order, cause] { OnDropped(order, cause); });
  };
  return options_.writer->Submit(std::move(write));
}

void CutOrders::OnDropped(const Order& order, const absl::Status& cause) {
  if (std::exchange(order.round->told_of_retry, true)) return;
  v1::TaskMessage message = DurableMessage(order.key, order.epoch);
  *message.mutable_shard_durable()->mutable_error() = client::ToErrorDetail(cause);
  message.mutable_shard_durable()->set_tried_again(true);
  options_.sender->SendIn(order.session, std::move(message));
  options_.logger->Warning(absl::StrCat("cannot write the snapshot of a shard; the server retries "
                                        "until the write succeeds: shard=",
                                        order.key.shard.ToString(), " cause=", cause.message()),
                           options_.directory->About(order.key.job));
}

void CutOrders::OnEnded(const Order& order, const absl::StatusOr<DurableCut>& result) {
  Round& round = *order.round;
  if (result.ok()) {
    ++round.files;
    round.bytes += result->digest.bytes;
  } else if (!absl::IsCancelled(result.status()) && !absl::IsAborted(result.status())) {
    if (round.failed++ == 0) round.first_failure = std::string(result.status().message());
  }
  // Aborted means that a newer order has replaced this order. The newer order will be answered.
  if (!absl::IsAborted(result.status())) {
    v1::TaskMessage message = DurableMessage(order.key, order.epoch);
    v1::ShardDurable* durable = message.mutable_shard_durable();
    if (result.ok())
      FillShardFile(*result, durable->mutable_file());
    else
      *durable->mutable_error() = client::ToErrorDetail(result.status());
    options_.sender->SendIn(order.session, std::move(message));
  }
  if (--round.left > 0) return;
  if (round.files > 0) {
    const std::chrono::duration<double> seconds = options_.clock->Now() - round.begin;
    options_.logger->Info(absl::StrCat("snapshot written: shards=", round.files,
                                       " bytes=", round.bytes, " seconds=", seconds.count()),
                          options_.directory->About(round.job));
  }
  if (round.failed > 0) {
    options_.logger->Warning(absl::StrCat("snapshot failed: shards=", round.failed, " of=",
                                          round.shards, " first_cause=", round.first_failure),
                             options_.directory->About(round.job));
  }
}

}  // namespace evergrad::ps_server

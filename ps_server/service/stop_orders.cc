#include "ps_server/service/stop_orders.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"

namespace evergrad::ps_server {

void StopOrders::Submit(const v1::StopShard& stop, std::uint64_t term) {
  const Order order{{JobUid(stop.job_uid()), ShardId(stop.shard())},
                    client::FromProto<ShardEpoch>(stop.epoch()),
                    options_.sender->session(),
                    stop.plan_fingerprint()};
  HeldShard* const held = options_.directory->Find(order.key, order.epoch);
  if (held == nullptr || held->loading) {
    return Answer(order, absl::NotFoundError(absl::StrCat(
                             "the shard is not held at this epoch: shard=",
                             order.key.shard.ToString(), " epoch=", order.epoch.ToString())));
  }
  if (held->stopped_in == 0) held->stopped_in = term;
  if (options_.images == nullptr)
    return Answer(order, absl::UnimplementedError("this server moves no shards"));
  options_.shard_executor(order.key.shard)
      .Stop(order.key, order.epoch, [this, order](absl::StatusOr<ShardCut> cut) {
        // The cut is in a shared_ptr, because a cut is large and a posted task is copied.
        auto given = std::make_shared<absl::StatusOr<ShardCut>>(std::move(cut));
        options_.executor->Post([this, order, given] { OnStopped(order, std::move(*given)); });
      });
}

void StopOrders::OnStopped(const Order& order, absl::StatusOr<ShardCut> cut) {
  if (!cut.ok()) return Answer(order, cut.status());
  if (options_.directory->Find(order.key, order.epoch) == nullptr) return;  // dropped meanwhile
  Images::Order image;
  image.cut = *std::move(cut);
  image.plan_fingerprint = order.plan_fingerprint;
  image.done = [this, order](absl::StatusOr<snapshot::FileDigest> made) {
    options_.executor->Post([this, order, made = std::move(made)] { Answer(order, made); });
  };
  if (const absl::Status status = options_.images->Submit(std::move(image)); !status.ok())
    Answer(order, status);
}

void StopOrders::Answer(const Order& order, const absl::StatusOr<snapshot::FileDigest>& image) {
  v1::TaskMessage message;
  v1::ShardStopped* stopped = message.mutable_stopped();
  stopped->set_job_uid(order.key.job.value());
  stopped->set_shard(order.key.shard.value());
  *stopped->mutable_epoch() = client::ToProto(order.epoch);
  if (image.ok()) {
    stopped->set_bytes(image->bytes);
    stopped->set_sha256(image->sha256.data(), image->sha256.size());
  } else {
    *stopped->mutable_error() = client::ToErrorDetail(image.status());
  }
  options_.sender->SendIn(order.session, std::move(message));
}

}  // namespace evergrad::ps_server

#include "ps_server/snapshot/restorer.h"

#include <utility>

#include "common/base/status.h"

namespace evergrad::ps_server {
namespace {

constexpr char kRestores[] = "evergrad_ps_server_restores_total";
constexpr char kRestoresHelp[] = "Shards read from their files, by outcome";

}  // namespace

Restorer::Restorer(Options options)
    : options_(std::move(options)),
      bytes_read_(options_.registry->GetCounter(
          "evergrad_ps_server_restored_bytes_total",
          "Bytes of values and optimizer state read from shard files")),
      restored_(options_.registry->GetCounter(kRestores, kRestoresHelp, {{"result", "restored"}})),
      cancelled_(
          options_.registry->GetCounter(kRestores, kRestoresHelp, {{"result", "cancelled"}})),
      failed_(options_.registry->GetCounter(kRestores, kRestoresHelp, {{"result", "failed"}})),
      seconds_(options_.registry->GetHistogram(
          "evergrad_ps_server_restore_seconds",
          "Duration from the opening of a shard file until its state is in memory and checked",
          {0.001, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100})),
      orders_limit_(*options_.registry, "evergrad_ps_server_restore_orders",
                    "Shards waiting to be read from their files",
                    static_cast<double>(options_.orders_max)),
      orders_({.name = "restores",
               .earlier = Orders::Earlier::kReplacedAndEnded,
               .orders_max = options_.orders_max,
               .too_many = "too many shards are waiting to be restored",
               .limit = &orders_limit_,
               .perform = [this](Orders::Entry entry) { Perform(std::move(entry.order)); }}) {}

Restorer::~Restorer() {
  for (Order& order : orders_.End()) order.done(absl::CancelledError("the server is ending"));
}

absl::Status Restorer::Submit(Order order) {
  const Orders::Key key{order.what.settings.job, order.what.settings.shard};
  if (order.what.source.files == nullptr) order.what.source.files = options_.files;
  order.what.source.pool = options_.pool;
  order.what.source.failpoints = options_.failpoints;
  order.what.source.cancelled = [this] { return orders_.Unwanted(); };
  EG_ASSIGN_OR_RETURN(const std::optional<Order> replaced, orders_.Submit(key, std::move(order)));
  if (replaced) {
    cancelled_.Add();
    replaced->done(absl::AbortedError("a newer order to restore the shard replaced this one"));
  }
  return absl::OkStatus();
}

void Restorer::Cancel(JobUid job, std::optional<ShardId> shard) {
  for (Order& order : orders_.Cancel(job, shard)) {
    cancelled_.Add();
    order.done(absl::CancelledError("loading of the shard was cancelled"));
  }
}

void Restorer::Perform(Order order) {
  const MonoTime begin = options_.clock->Now();
  absl::StatusOr<std::unique_ptr<Shard>> shard = RestoreShard(order.what);
  if (orders_.Unwanted()) {
    cancelled_.Add();
    // The assignment frees the memory of the shard before the next shard is read.
    shard = absl::CancelledError("loading of the shard was cancelled");
  } else if (shard.ok()) {
    restored_.Add();
    seconds_.Observe(std::chrono::duration<double>(options_.clock->Now() - begin).count());
    bytes_read_.Add((*shard)->value_bytes() + (*shard)->state_bytes());
  } else {
    failed_.Add();
  }
  order.done(std::move(shard));
}

}  // namespace evergrad::ps_server

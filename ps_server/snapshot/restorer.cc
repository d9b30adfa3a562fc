#include "ps_server/snapshot/restorer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

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
          "Duration from opening a shard file to its checked state in memory",
          {0.001, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100})),
      orders_limit_(*options_.registry, "evergrad_ps_server_restore_orders",
                    "Shards waiting to be read from their files",
                    static_cast<double>(options_.orders_max)) {
  thread_.emplace("restores", [this] { Run(); });
}

Restorer::~Restorer() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.reset();
  std::deque<Order> left;
  {
    MutexLock lock(&mu_);
    left.swap(queue_);
  }
  for (Order& order : left) order.done(absl::CancelledError("the server ends"));
}

absl::Status Restorer::Submit(Order order) {
  const std::pair key(order.what.settings.job, order.what.settings.shard);
  if (order.what.source.files == nullptr) order.what.source.files = options_.files;
  order.what.source.pool = options_.pool;
  order.what.source.failpoints = options_.failpoints;
  order.what.source.cancelled = [this] { return Unwanted(); };
  std::optional<Order> replaced;
  {
    MutexLock lock(&mu_);
    if (current_ == key) current_cancelled_ = true;
    const auto found = std::find_if(queue_.begin(), queue_.end(), [&](const Order& waits) {
      return std::pair(waits.what.settings.job, waits.what.settings.shard) == key;
    });
    if (found != queue_.end()) {
      replaced = std::exchange(*found, std::move(order));
    } else {
      if (queue_.size() >= options_.orders_max) {
        orders_limit_.refused.Add();
        return absl::ResourceExhaustedError(
            absl::StrCat("too many shards are waiting to be restored: max=", options_.orders_max));
      }
      queue_.push_back(std::move(order));
      orders_limit_.current.Set(static_cast<double>(queue_.size()));
    }
    changed_.NotifyAll();
  }
  if (replaced) {
    cancelled_.Add();
    replaced->done(absl::AbortedError("a newer order for the shard replaced this one"));
  }
  return absl::OkStatus();
}

void Restorer::Cancel(JobUid job, std::optional<ShardId> shard) {
  std::deque<Order> ended;
  {
    MutexLock lock(&mu_);
    const auto meant = [&](JobUid j, ShardId s) { return j == job && (!shard || s == *shard); };
    for (auto it = queue_.begin(); it != queue_.end();) {
      if (!meant(it->what.settings.job, it->what.settings.shard)) {
        ++it;
        continue;
      }
      ended.push_back(std::move(*it));
      it = queue_.erase(it);
    }
    if (current_ && meant(current_->first, current_->second)) current_cancelled_ = true;
    orders_limit_.current.Set(static_cast<double>(queue_.size()));
  }
  for (Order& order : ended) {
    cancelled_.Add();
    order.done(absl::CancelledError("loading of the shard was cancelled"));
  }
}

std::size_t Restorer::waiting() const {
  MutexLock lock(&mu_);
  return queue_.size();
}

bool Restorer::Unwanted() const {
  MutexLock lock(&mu_);
  return stopping_ || current_cancelled_;
}

void Restorer::Run() {
  for (;;) {
    std::optional<Order> order;
    {
      MutexLock lock(&mu_);
      while (!stopping_ && queue_.empty()) changed_.Wait(&mu_);
      if (stopping_) return;
      order = std::move(queue_.front());
      queue_.pop_front();
      current_.emplace(order->what.settings.job, order->what.settings.shard);
      current_cancelled_ = false;
      orders_limit_.current.Set(static_cast<double>(queue_.size()));
    }
    const MonoTime begin = options_.clock->Now();
    absl::StatusOr<std::unique_ptr<Shard>> shard = RestoreShard(order->what);
    bool unwanted = false;
    {
      MutexLock lock(&mu_);
      unwanted = stopping_ || current_cancelled_;
      current_.reset();
    }
    if (unwanted) {
      cancelled_.Add();
      shard = absl::CancelledError(
          "loading of the shard was cancelled");  // its memory is freed before the next one is read
    } else if (shard.ok()) {
      restored_.Add();
      seconds_.Observe(std::chrono::duration<double>(options_.clock->Now() - begin).count());
      bytes_read_.Add((*shard)->value_bytes() + (*shard)->state_bytes());
    } else {
      failed_.Add();
    }
    order->done(std::move(shard));
  }
}

}  // namespace evergrad::ps_server

// A queue of orders about shards, and the I/O thread that performs them one at a time.
//
// Orders are performed in order of arrival. The queue itself answers no order: a call that ends
// orders returns them, and the caller answers them without a lock held. Thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "common/runtime/background.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"

namespace evergrad::ps_server {

template <class Order>
class OrderQueue {
 public:
  using Key = std::pair<JobUid, ShardId>;
  struct Entry {
    Key key;
    Order order;
    MonoTime due{0};  // the order is not performed before this time
    // Delay before the latest attempt; 0 for the first attempt.
    std::chrono::milliseconds backoff{0};
  };
  // The effect of an order on earlier orders of its shard: all are kept, or a waiting order is
  // replaced, or a waiting order is replaced and the order that is being performed is ended.
  enum class Earlier { kKept, kReplacedWhereWaiting, kReplacedAndEnded };
  enum class Again { kQueued, kReplaced, kUnwanted };
  struct Options {
    std::string name;         // name of the thread
    bool background = false;  // The thread has a low priority.
    Earlier earlier = Earlier::kKept;
    std::size_t orders_max = std::numeric_limits<std::size_t>::max();
    std::string too_many = {};           // the error's message if orders_max orders wait
    metrics::Limit* limit = nullptr;     // metric of the waiting orders; may be null
    const Clock* clock = nullptr;        // if null, no order is performed again
    std::function<void(Entry)> perform;  // Called on the queue's thread, without a lock held.
  };

  // All objects that `perform` uses must exist from this call until End returns.
  explicit OrderQueue(Options options)
      : options_(std::move(options)), thread_(options_.name, [this] { Run(); }) {}
  ~OrderQueue() { End(); }

  // Adds an order. Never blocks. Returns the waiting order that the new order replaces, if any. The
  // new order gets the place and the backoff of the replaced order. With kReplacedAndEnded an order
  // of the shard that is being performed becomes unwanted. Returns ResourceExhausted if orders_max
  // orders wait.
  absl::StatusOr<std::optional<Order>> Submit(const Key& key, Order order) {
    MutexLock lock(&mu_);
    if (options_.earlier == Earlier::kReplacedAndEnded && current_ == key) unwanted_ = true;
    const auto found = waiting_.find(key);
    if (options_.earlier != Earlier::kKept && found != waiting_.end())
      return std::exchange(found->second.order, std::move(order));
    if (waiting_.size() >= options_.orders_max) {
      if (options_.limit != nullptr) options_.limit->refused.Add();
      return absl::ResourceExhaustedError(
          absl::StrCat(options_.too_many, ": max=", options_.orders_max));
    }
    Add({key, std::move(order)});
    return std::nullopt;
  }
  // Puts the order that is being performed back at the end of the queue, where it waits until its
  // due time. Moves from `entry` if the result is kQueued. Called by `perform`.
  Again PerformAgain(Entry& entry) {
    MutexLock lock(&mu_);
    if (unwanted_ || stopping_) return Again::kUnwanted;
    if (waiting_.contains(entry.key)) return Again::kReplaced;
    Add(std::move(entry));
    return Again::kQueued;
  }
  // Removes and returns the waiting orders of the shard, or of all shards of a job. An order of
  // these shards that is being performed becomes unwanted.
  std::vector<Order> Cancel(JobUid job, std::optional<ShardId> shard) {
    const auto meant = [&](const Key& key) {
      return key.first == job && (!shard || key.second == *shard);
    };
    std::vector<Order> ended;
    MutexLock lock(&mu_);
    for (auto turn = turns_.begin(); turn != turns_.end();) {
      const auto next = std::next(turn);
      if (meant((*turn)->first)) ended.push_back(Take(turn).order);
      turn = next;
    }
    if (current_ && meant(*current_)) unwanted_ = true;
    return ended;
  }
  // Makes the order that is being performed unwanted, and prevents the thread from beginning
  // another order.
  void Stop() {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  // Stops, waits for the end of the thread, and returns the waiting orders. Idempotent.
  std::vector<Order> End() {
    Stop();
    thread_.Join();
    std::vector<Order> left;
    MutexLock lock(&mu_);
    while (!turns_.empty()) left.push_back(Take(turns_.begin()).order);
    return left;
  }

  // Returns whether the order that is being performed was cancelled, or the queue was stopped.
  bool Unwanted() const {
    MutexLock lock(&mu_);
    return stopping_ || unwanted_;
  }
  bool stopping() const {
    MutexLock lock(&mu_);
    return stopping_;
  }
  std::size_t waiting() const {
    MutexLock lock(&mu_);
    return waiting_.size();
  }

 private:
  using Waiting = std::multimap<Key, Entry>;
  using Turns = std::list<typename Waiting::iterator>;

  void Add(Entry entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Key key = entry.key;
    turns_.push_back(waiting_.emplace(key, std::move(entry)));
    if (options_.limit != nullptr)
      options_.limit->current.Set(static_cast<double>(waiting_.size()));
    changed_.NotifyAll();
  }
  Entry Take(typename Turns::iterator turn) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Entry entry = std::move((*turn)->second);
    waiting_.erase(*turn);
    turns_.erase(turn);
    if (options_.limit != nullptr)
      options_.limit->current.Set(static_cast<double>(waiting_.size()));
    return entry;
  }
  // Waits for the first order that is due, in order of arrival. Returns nullopt once the queue is
  // stopped.
  std::optional<Entry> Next() {
    MutexLock lock(&mu_);
    current_.reset();
    unwanted_ = false;
    while (!stopping_) {
      const MonoTime now = options_.clock == nullptr ? MonoTime{0} : options_.clock->Now();
      std::optional<MonoTime> soonest;
      for (auto turn = turns_.begin(); turn != turns_.end(); ++turn) {
        const MonoTime due = (*turn)->second.due;
        if (due <= now) {
          current_ = (*turn)->first;
          return Take(turn);
        }
        soonest = std::min(soonest.value_or(due), due);
      }
      if (soonest)
        changed_.WaitFor(&mu_, *soonest - now);
      else
        changed_.Wait(&mu_);
    }
    return std::nullopt;
  }
  void Run() {
    if (options_.background) runtime::RunInBackground();
    while (std::optional<Entry> entry = Next()) options_.perform(*std::move(entry));
  }

  const Options options_;
  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Waiting waiting_ ABSL_GUARDED_BY(mu_);
  Turns turns_ ABSL_GUARDED_BY(mu_);  // in order of arrival; each order of waiting_ occurs once
  std::optional<Key> current_ ABSL_GUARDED_BY(mu_);  // the order that is being performed
  bool unwanted_ ABSL_GUARDED_BY(mu_) = false;
  runtime::Thread thread_;  // this is the last member, because the thread uses the others
};

}  // namespace evergrad::ps_server

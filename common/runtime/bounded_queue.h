// A blocking queue with a bound, for threads that may block (readers, prefetch, HTTP). Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

#include "common/base/mutex.h"

namespace evergrad::runtime {

template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t items_max) : items_max_(items_max) {}

  // Waits while the queue is full. Returns false if it is closed; the item is dropped.
  bool Push(T item) {
    MutexLock lock(&mu_);
    while (items_.size() >= items_max_ && !closed_) not_full_.Wait(&mu_);
    if (closed_) return false;
    items_.push_back(std::move(item));
    not_empty_.NotifyOne();
    return true;
  }
  // Returns false if the queue is full or closed.
  bool TryPush(T item) {
    MutexLock lock(&mu_);
    if (closed_ || items_.size() >= items_max_) return false;
    items_.push_back(std::move(item));
    not_empty_.NotifyOne();
    return true;
  }
  // Waits while the queue is empty. Returns nullopt once the queue is closed and drained.
  std::optional<T> Pop() {
    MutexLock lock(&mu_);
    while (items_.empty() && !closed_) not_empty_.Wait(&mu_);
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    not_full_.NotifyOne();
    return item;
  }
  // Refuses new items; queued items can still be popped.
  void Close() {
    MutexLock lock(&mu_);
    closed_ = true;
    not_full_.NotifyAll();
    not_empty_.NotifyAll();
  }
  std::size_t size() const {
    MutexLock lock(&mu_);
    return items_.size();
  }

 private:
  const std::size_t items_max_;
  mutable Mutex mu_;
  CondVar not_full_, not_empty_;
  std::deque<T> items_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace evergrad::runtime

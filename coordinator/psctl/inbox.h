// Messages to a command while it waits: answers and signals. Any thread may fill the inbox; the
// command's own thread empties it.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/base/mutex.h"

namespace evergrad::psctl {

template <class T>
class Inbox {
 public:
  // The limit is not reached in practice: at most one answer is pending, and signals arrive only as
  // fast as a person presses Ctrl-C.
  static constexpr std::size_t kItemsMax = 4096;

  void Put(T item) {
    MutexLock lock(&mu_);
    EG_CHECK(items_.size() < kItemsMax);
    items_.push_back(std::move(item));
    changed_.NotifyOne();
  }
  // Returns nullopt when `timeout` has passed, or slightly earlier. Callers check the clock and
  // call again.
  std::optional<T> Take(std::chrono::nanoseconds timeout) {
    MutexLock lock(&mu_);
    if (items_.empty()) changed_.WaitFor(&mu_, timeout);
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::deque<T> items_ ABSL_GUARDED_BY(mu_);
};

}  // namespace evergrad::psctl

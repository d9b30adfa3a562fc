// A clock and an executor that advance only when a test tells them to.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "common/runtime/executor.h"
#include "common/time/clock.h"

namespace evergrad {

// The clock begins at 0. Not thread-safe.
class ManualClock final : public Clock {
 public:
  MonoTime Now() const override { return now_; }
  std::int64_t WallMillis() const override { return wall_ms_; }
  void Advance(MonoTime by) {
    now_ += by;
    wall_ms_ += std::chrono::duration_cast<std::chrono::milliseconds>(by).count();
  }

 private:
  MonoTime now_{0};
  std::int64_t wall_ms_ = 0;
};

namespace runtime {

// Tasks run only inside RunReady and Advance. Not thread-safe.
class ManualExecutor final : public Executor {
 public:
  // The clock outlives the executor.
  explicit ManualExecutor(ManualClock* clock) : clock_(*clock) {}
  bool Post(Task task) override {
    queue_.push_back(std::move(task));
    return true;
  }
  bool PostAfter(std::chrono::nanoseconds delay, Task task) override {
    // The deadline must not overflow, so it is at most MonoTime::max(). At that deadline the task
    // never runs.
    const MonoTime left = MonoTime::max() - clock_.Now();
    timers_.emplace(clock_.Now() + std::min(delay, left), std::move(task));
    return true;
  }
  // Runs all tasks that are due, and the tasks that these tasks post. Returns the number of tasks.
  int RunReady() {
    for (int ran = 0;; ++ran) {
      for (; IsDue(clock_.Now()); timers_.erase(timers_.begin()))
        queue_.push_back(std::move(timers_.begin()->second));
      if (queue_.empty()) return ran;
      const Task task = std::move(queue_.front());
      queue_.pop_front();
      task();
    }
  }
  // Moves the clock forward by `by`. On its way the clock stops at each timer that becomes due, and
  // the timer's task runs. Returns the number of tasks that ran.
  int Advance(std::chrono::nanoseconds by) {
    const MonoTime until = clock_.Now() + by;
    int ran = RunReady();
    while (IsDue(until)) {
      clock_.Advance(timers_.begin()->first - clock_.Now());
      ran += RunReady();
    }
    if (clock_.Now() < until) clock_.Advance(until - clock_.Now());
    return ran + RunReady();
  }

 private:
  bool IsDue(MonoTime at) const { return !timers_.empty() && timers_.begin()->first <= at; }

  ManualClock& clock_;
  std::deque<Task> queue_;
  // Timers that are due at the same time run in the order in which they were set.
  std::multimap<MonoTime, Task> timers_;
};

}  // namespace runtime
}  // namespace evergrad

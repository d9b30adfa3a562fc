// The threads of one file system that send requests to object stores, so that a file can have
// several requests in flight.
//
// The threads start with the first task. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "common/base/mutex.h"
#include "common/runtime/executor.h"

namespace evergrad::object_store {

class IoThreads {
 public:
  using Task = std::function<void()>;
  explicit IoThreads(int threads) : count_(threads) {}
  // Runs the queued tasks, and then ends the threads.
  ~IoThreads();
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  // Queues a task. A task may block, but must not wait for another task. The callers bound the
  // number of their tasks.
  void Post(Task task);
  // Like Post, for a task that may be omitted. Drops the task if as many tasks as threads wait.
  void PostUnlessBusy(Task task);

 private:
  void PostLocked(Task task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run();

  const int count_;
  Mutex mu_;
  CondVar changed_;
  std::deque<Task> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<runtime::Thread> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace evergrad::object_store

// Threads, queues and timers. Every thread of the project starts here and has a name, an owner, a
// bound and an end.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "common/time/clock.h"

namespace evergrad::runtime {

using Task = std::function<void()>;

// Runs tasks one at a time, in order. Post and PostAfter are thread-safe and never block; a task
// must not block.
class Executor {
 public:
  virtual ~Executor() = default;
  // Returns false after the shutdown. The task is then destroyed without running.
  virtual bool Post(Task task) = 0;
  // Runs `task` once, after `delay` or later. Returns false after the shutdown.
  virtual bool PostAfter(std::chrono::nanoseconds delay, Task task) = 0;
  // Runs `task` on the calling thread and returns true, if no task of the executor is running or
  // queued. Tasks posted meanwhile run afterwards. Otherwise RunIfIdle returns false, and the
  // caller posts `task`. Use RunIfIdle for tasks that take less time than the wake-up of a thread.
  // Never blocks.
  virtual bool RunIfIdle(const Task& task) {
    (void)task;
    return false;
  }
};

// An executor with its own thread.
class ThreadExecutor final : public Executor {
 public:
  struct Options {
    std::string name;  // Thread name; the system shows 15 characters.
    // Limit of waiting tasks. Callers have their own bounds, so that this limit is never exceeded
    // (EG_CHECK).
    std::size_t queue_max = 1u << 20;
  };
  explicit ThreadExecutor(Options options);
  ~ThreadExecutor() override;  // The destructor calls Shutdown().

  bool Post(Task task) override;
  bool PostAfter(std::chrono::nanoseconds delay, Task task) override;
  bool RunIfIdle(const Task& task) override;
  // Runs the tasks posted before the call, drops timers that are not due, and joins the thread.
  // Idempotent. Must not be called on the executor's own thread.
  void Shutdown();
  // Returns true on the executor's own thread, and false on a thread that RunIfIdle borrows.
  bool InThisThread() const;
  std::size_t queue_depth() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A named thread that runs `body` once; the destructor joins it. `body` must end by itself, for
// example because of a closed queue or a stop flag.
class Thread {
 public:
  Thread(absl::string_view name, std::function<void()> body);
  ~Thread();
  Thread(Thread&&) noexcept;
  Thread& operator=(Thread&&) noexcept;
  void Join();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A one-shot notification. Thread-safe.
class WaitableEvent {
 public:
  WaitableEvent();
  ~WaitableEvent();
  void Set();
  bool IsSet() const;
  void Wait();
  // Returns false if `timeout` passed first.
  bool WaitFor(std::chrono::nanoseconds timeout);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Waits for SIGTERM or SIGINT of this process. main calls `Install` before any thread starts. A
// process started with SIGINT ignored (a child of `psctl job run --local`) keeps ignoring it.
class SignalWaiter {
 public:
  static constexpr int kTimedOut = -1;
  static void Install();  // Blocks both signals in this and all later threads, and ignores SIGPIPE.
  // Undoes Install between fork and exec, because a child inherits its effects.
  // Async-signal-safe.
  static void ResetInChild();

  SignalWaiter();
  ~SignalWaiter();
  SignalWaiter(const SignalWaiter&) = delete;
  SignalWaiter& operator=(const SignalWaiter&) = delete;
  // Returns the number of the next signal. Each signal is returned once, so that the caller can
  // distinguish a second Ctrl-C from the first. After RequestStop(), which any thread may call,
  // Wait returns 0 whenever no signal is waiting.
  int Wait();
  int WaitFor(std::chrono::milliseconds timeout);  // Returns kTimedOut if no signal arrived.
  void RequestStop();

 private:
  int signal_fd_ = -1;
  int stop_fd_ = -1;
};

}  // namespace evergrad::runtime

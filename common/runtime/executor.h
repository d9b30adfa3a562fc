// Threads, queues and timers: every thread of the project starts here, has a name, an owner, a
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

// Runs tasks one after another, in order. Post and PostAfter are thread-safe and never block; a
// task must not block.
class Executor {
 public:
  virtual ~Executor() = default;
  // False when the executor has been shut down: the task is destroyed unrun.
  virtual bool Post(Task task) = 0;
  // Runs `task` once, `delay` from now or later. False as above.
  virtual bool PostAfter(std::chrono::nanoseconds delay, Task task) = 0;
  // Runs `task` here and now, as the executor's only one, if nothing of it runs or waits; what is
  // posted meanwhile runs after it. False: it does not, and `task` is untouched: post it. For what
  // takes less than to wake a thread. Never blocks.
  virtual bool RunIfIdle(const Task& task) {
    (void)task;
    return false;
  }
};

// An executor with a thread of its own.
class ThreadExecutor final : public Executor {
 public:
  struct Options {
    std::string name;                  // Thread name, 15 characters shown by the system.
    std::size_t queue_max = 1u << 20;  // Tasks waiting beyond this are a broken invariant of the
                                       // caller's bounds: EG_CHECK.
  };
  explicit ThreadExecutor(Options options);
  ~ThreadExecutor() override;  // Shutdown().

  bool Post(Task task) override;
  bool PostAfter(std::chrono::nanoseconds delay, Task task) override;
  bool RunIfIdle(const Task& task) override;
  // Runs what was posted before the call, drops timers not yet due, joins the thread. Idempotent;
  // not from its own thread.
  void Shutdown();
  bool InThisThread() const;  // Its own: not the one that RunIfIdle borrows.
  std::size_t queue_depth() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// An executor under a ManualClock, for tests: nothing runs until told. Not thread-safe.
class ManualExecutor final : public Executor {
 public:
  explicit ManualExecutor(ManualClock* clock);  // Outlives the executor.
  ~ManualExecutor() override;
  bool Post(Task task) override;
  bool PostAfter(std::chrono::nanoseconds delay, Task task) override;
  // Runs everything due now, including what that posts; returns how many tasks ran.
  int RunReady();
  // Moves the clock forward in order of due timers and runs each, up to now + `by`.
  int Advance(std::chrono::nanoseconds by);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A named thread that runs `body` once; joins in the destructor. `body` must end by its own means
// (a closed queue, a stop flag).
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

// One-shot notification. Thread-safe.
class Event {
 public:
  Event();
  ~Event();
  void Set();
  bool IsSet() const;
  void Wait();
  // False when `timeout` passed first.
  bool WaitFor(std::chrono::nanoseconds timeout);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Waits for SIGTERM or SIGINT of this process. `Install` first, in main, before any thread starts.
// A process started with SIGINT ignored (a child of `psctl job run --local`) keeps ignoring it.
class SignalWaiter {
 public:
  static constexpr int kTimedOut = -1;
  static void Install();  // Blocks both signals in this and all later threads; SIGPIPE is ignored.
  static void ResetInChild();  // Undoes Install between fork and exec: a child inherits both.
                               // Async-signal-safe.

  SignalWaiter();
  ~SignalWaiter();
  SignalWaiter(const SignalWaiter&) = delete;
  SignalWaiter& operator=(const SignalWaiter&) = delete;
  // Returns the next signal's number; each is returned once, so that a second Ctrl-C can be told
  // from the first. Once RequestStop() was called (thread-safe, from anywhere), 0 whenever no
  // signal is waiting.
  int Wait();
  int WaitFor(std::chrono::milliseconds timeout);  // kTimedOut when nothing came.
  void RequestStop();

 private:
  int signal_fd_ = -1;
  int stop_fd_ = -1;
};

}  // namespace evergrad::runtime

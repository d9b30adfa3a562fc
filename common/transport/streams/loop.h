// The only thread of one side of a transport. All streams of that side run on this thread, so no
// stream needs a lock. Private to the room.
#pragma once

#include <chrono>
#include <functional>

#include "common/base/mutex.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"

namespace evergrad::transport {

// The ownership is shared by the transport, its public objects, and the tokens and responders that
// may still post. The owner of the transport shuts the loop down, and afterwards Post returns
// false.
class Loop : public runtime::Executor {
 public:
  virtual bool InThisThread() const = 0;
  MonoTime Now() const { return clock_.Now(); }

  // Runs `task` after the tasks that are queued now, so that one task can complete the work of
  // many. The caller runs on the loop.
  virtual void Defer(runtime::Task task) { Post(std::move(task)); }

  // Runs `task` on the loop and waits for it. On the loop's own thread, and after the loop's end,
  // `task` runs inline.
  void RunAndWait(const std::function<void()>& task) {
    if (!InThisThread()) {
      runtime::WaitableEvent ran;
      if (Post([&] {
            task();
            ran.Set();
          })) {
        ran.Wait();
        return;
      }
    }
    task();
  }

  // Counts the message streams that their owner has closed and that still send their last messages.
  // May be called on any thread.
  void BeginFlush() {
    MutexLock lock(&flush_mu_);
    ++flushing_;
  }
  void EndFlush() {
    MutexLock lock(&flush_mu_);
    if (--flushing_ == 0) flushed_.NotifyAll();
  }
  // Waits until the counted streams have ended, before a transport or server ends. kFlushMax bounds
  // the wait. Returns at once on the loop's own thread.
  void AwaitFlushed() {
    if (InThisThread()) return;
    const MonoTime until = Now() + kFlushMax;
    MutexLock lock(&flush_mu_);
    while (flushing_ > 0) {
      const MonoTime left = until - Now();
      if (left <= MonoTime{0}) return;
      flushed_.WaitFor(&flush_mu_, left);
    }
  }
  // After this time since Close(), unsent messages are dropped.
  static constexpr MonoTime kFlushMax = std::chrono::seconds(2);

 private:
  RealClock clock_;
  Mutex flush_mu_;
  CondVar flushed_;
  int flushing_ ABSL_GUARDED_BY(flush_mu_) = 0;
};

}  // namespace evergrad::transport

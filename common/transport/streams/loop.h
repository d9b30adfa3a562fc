// The one thread of a transport's side, on which all of its streams live: no stream needs a lock.
// Private to the room.
#pragma once

#include <chrono>
#include <functional>

#include "common/base/mutex.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"

namespace evergrad::transport {

// Shared by the transport, its public objects and whoever may still post (tokens, responders):
// memory only. Its owner shuts it down; after that Post returns false.
class Loop : public runtime::Executor {
 public:
  virtual bool InThisThread() const = 0;
  MonoTime Now() const { return clock_.Now(); }

  // On the loop: runs `task` after what is queued now, so that many steps end in one.
  virtual void Defer(runtime::Task task) { Post(std::move(task)); }

  // Runs `task` on the loop and waits for it. Inline on the loop's own thread, and after its end.
  void RunAndWait(const std::function<void()>& task) {
    if (!InThisThread()) {
      runtime::Event ran;
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

  // Message streams that were closed by their owner and are not through yet: what they have left is
  // still on its way. Any thread.
  void BeginFlush() {
    MutexLock lock(&flush_mu_);
    ++flushing_;
  }
  void EndFlush() {
    MutexLock lock(&flush_mu_);
    if (--flushing_ == 0) flushed_.NotifyAll();
  }
  // Before a transport or server ends: waits until they are through, which a stream's own bound
  // (kFlushMax) makes short. At once on the loop's own thread.
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
  static constexpr MonoTime kFlushMax =
      std::chrono::seconds(2);  // After Close(): what is unsent then is dropped.

 private:
  RealClock clock_;
  Mutex flush_mu_;
  CondVar flushed_;
  int flushing_ ABSL_GUARDED_BY(flush_mu_) = 0;
};

}  // namespace evergrad::transport

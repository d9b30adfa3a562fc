// The one thread of a transport's side, on which all of its streams live: no stream needs a lock. Private to the room.
#pragma once

#include <functional>

#include "common/runtime/executor.h"
#include "common/time/clock.h"

namespace evergrad::transport {

// Shared by the transport, its public objects and whoever may still post (tokens, responders): memory only. Its owner
// shuts it down; after that Post returns false.
class Loop : public runtime::Executor {
 public:
  virtual bool InThisThread() const = 0;
  MonoTime Now() const { return clock_.Now(); }

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

 private:
  RealClock clock_;
};

}  // namespace evergrad::transport

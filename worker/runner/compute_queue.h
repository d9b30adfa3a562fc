// The path of a computation between the runner's two threads: it runs on the compute executor and
// resumes on the control executor.
//
//   control executor ── Run(work, then) ─┐                          ┌─▶ then(result)
//   compute executor                     └─▶ result = work() ───────┘
//
// Each computation takes these two hops and no others. The control executor must not compute, and
// the compute executor must not touch the exchange, the attempt book or the session, so that none
// of them needs a lock. Used on the control executor.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "common/runtime/executor.h"

namespace evergrad::worker {

class ComputeQueue {
 public:
  // Both executors outlive the queue.
  ComputeQueue(runtime::Executor* control, runtime::Executor* compute)
      : control_(control), compute_(compute) {}

  // `work` runs on the compute executor, and `then` on the control executor with its result. A
  // caller that may end before that must guard `then`.
  template <class Work, class Then>
  void Run(Work work, Then then) {
    ++*under_way_;
    compute_->Post([control = control_, under_way = under_way_, work = std::move(work),
                    then = std::move(then)]() mutable {
      // The result is passed behind a pointer, because a Status shared by both threads would have
      // its reference count in a library that is not instrumented for ThreadSanitizer.
      auto result = std::make_shared<decltype(work())>(work());
      control->Post([under_way, then = std::move(then), result]() mutable {
        --*under_way;
        then(std::move(*result));
      });
    });
  }
  // `work` runs on the compute executor, and nothing follows.
  template <class Work>
  void Post(Work work) {
    compute_->Post(std::move(work));
  }
  // A computation was handed over by Run and has not returned.
  bool busy() const { return *under_way_ > 0; }

 private:
  runtime::Executor* const control_;
  runtime::Executor* const compute_;
  // Changed on the control executor. Shared with the posted tasks, which may outlive the queue.
  const std::shared_ptr<std::uint64_t> under_way_ = std::make_shared<std::uint64_t>(0);
};

}  // namespace evergrad::worker

// The path of a computation between the runner's two threads. The computation runs on the compute
// executor, and its continuation on the control executor.
//
//   control executor ── Run(work, then) ─┐                          ┌─▶ then(result)
//   compute executor                     └─▶ result = work() ───────┘
//
// Each computation is passed between the executors only these two times. The control executor must
// not compute. The compute executor must not touch the exchange, the attempt book and the session,
// which therefore need no lock. Used on the control executor.
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

  // Runs `work` on the compute executor, then `then` with its result on the control executor. If
  // the caller may be destroyed earlier, `then` must check that the caller still exists.
  template <class Work, class Then>
  void Run(Work work, Then then) {
    ++*under_way_;
    compute_->Post([control = control_, under_way = under_way_, work = std::move(work),
                    then = std::move(then)]() mutable {
      // The result is passed by a pointer. Otherwise both threads would share a Status, and its
      // reference count would change in a library that ThreadSanitizer does not see.
      auto result = std::make_shared<decltype(work())>(work());
      control->Post([under_way, then = std::move(then), result]() mutable {
        --*under_way;
        then(std::move(*result));
      });
    });
  }
  // Runs `work` on the compute executor, without a continuation.
  template <class Work>
  void Post(Work work) {
    compute_->Post(std::move(work));
  }
  // Returns whether a computation that Run handed over has not returned.
  bool busy() const { return *under_way_ > 0; }

 private:
  runtime::Executor* const control_;
  runtime::Executor* const compute_;
  // The number of computations that have not returned, used on the control executor only. Posted
  // functions share the number, because they may outlive the queue.
  const std::shared_ptr<std::uint64_t> under_way_ = std::make_shared<std::uint64_t>(0);
};

}  // namespace evergrad::worker

// Evaluations as barriers between the closures of training [29], as in coordinator/jobs: later
// closures are not granted before the evaluation has ended.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/simulation/journaled_book.h"

namespace evergrad::simulation {

class EvaluationBarrier {
 public:
  // All three referenced objects must outlive the barrier.
  EvaluationBarrier(WalkContext& walk, Tasks& tasks, JournaledBook& book)
      : walk_(walk), tasks_(tasks), book_(book) {}

  // Returns how many training closures may be granted before the next evaluation.
  std::uint64_t limit() const {
    return walk_.options.evaluate
               ? std::min<std::uint64_t>(kClosures, (completed_ + 1) * walk_.options.epoch)
               : kClosures;
  }
  // The number of evaluations that have a metric. The simulated journal never loses the record of
  // this number.
  std::uint64_t completed() const { return completed_; }
  // Returns whether all evaluations of the plan have a metric.
  bool AllCompleted() const {
    return !walk_.options.evaluate || completed_ * walk_.options.epoch >= kClosures;
  }
  // Called when the job resumes from a manifest that has this number. An evaluation that has a
  // metric is not repeated. However, closures before it may be granted again, and the files may
  // already contain some updates of closures after it.
  void ResumeFrom(std::uint64_t completed) { completed_ = completed; }
  // Called when a coordinator starts or the job ends early. No evaluation is in progress then.
  void Clear() { closures_.clear(); }

  bool running() const { return !closures_.empty(); }
  // Begins the next evaluation, if all closures before it are done.
  void Advance();
  void Grant(const SimulatedWorker& w);
  // Answers a Done. `counts` is false if the shards of the job are being sealed or are sealed. The
  // Done then does not count.
  void OnDone(const SimulatedWorker& w, const Up& m, bool counts);
  // Called when a shard begins from another state. The values that the evaluation has read then no
  // longer count.
  void Void();

  // Called when a worker registers and still has this attempt. Returns whether it may continue the
  // attempt.
  bool Adopt(const SimulatedWorker& w, ClosureId closure, Attempt attempt);
  // Called when attempts end without a Done. Their closures are granted again.
  void ReleaseAttempt(ClosureId closure, Attempt attempt);
  void ReleaseWorker(TaskId registration);
  void ReleaseAll();
  // Ends the leases of disconnected workers, and sometimes the lease of a connected worker.
  void EndLeases();

 private:
  struct Closure {
    ClosureId closure;
    Attempt attempt{};  // (0,0) if the closure is not granted
    TaskId worker{};
    bool done = false;
    std::shared_ptr<const Evaluated> result;
  };
  // Checks that the evaluation read all updates of the closures before the barrier, and no others.
  void Finish();
  void CheckRead(const Closure& closure, std::uint32_t p);

  WalkContext& walk_;
  Tasks& tasks_;
  JournaledBook& book_;
  std::vector<Closure> closures_;  // the closures of the evaluation in progress
  std::uint64_t rounds_ = 0, completed_ = 0;
};

}  // namespace evergrad::simulation

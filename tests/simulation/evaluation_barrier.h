// Evaluations as barriers between the closures of training [29], as in coordinator/jobs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/simulation/journaled_book.h"

namespace evergrad::simulation {

class EvaluationBarrier {
 public:
  // All three outlive the barrier.
  EvaluationBarrier(WalkContext& walk, Tasks& tasks, JournaledBook& book)
      : walk_(walk), tasks_(tasks), book_(book) {}

  // The closures of training that are granted before the next evaluation.
  std::uint64_t limit() const {
    return walk_.options.evaluate
               ? std::min<std::uint64_t>(kClosures, (completed_ + 1) * walk_.options.epoch)
               : kClosures;
  }
  // Evaluations with a metric. The record of this number is never torn off.
  std::uint64_t completed() const { return completed_; }
  // Returns whether all evaluations of the plan have a metric.
  bool AllCompleted() const {
    return !walk_.options.evaluate || completed_ * walk_.options.epoch >= kClosures;
  }
  // The job resumes from a manifest with this number. A barrier with a metric is not evaluated
  // again, although closures before it may be granted again: the files may hold a part of the
  // updates after it.
  void ResumeFrom(std::uint64_t completed) { completed_ = completed; }
  // A coordinator starts, or the job ends early: nothing is evaluated now.
  void Clear() { closures_.clear(); }

  bool running() const { return !closures_.empty(); }
  // Begins the evaluation at the barrier, if it is reached.
  void Advance();
  void Grant(const SimulatedWorker& w);
  // Answers a Done. `counts` is false once the job is being sealed.
  void OnDone(const SimulatedWorker& w, const Up& m, bool counts);
  // A shard begins from another state, so the values that were read are void.
  void Void();

  // The worker's Hello has this attempt in hand. Returns whether the worker continues it.
  bool Adopt(const SimulatedWorker& w, ClosureId closure, Attempt attempt);
  // Attempts that end without a Done. Their closures are granted again.
  void ReleaseAttempt(ClosureId closure, Attempt attempt);
  void ReleaseWorker(TaskId registration);
  void ReleaseAll();
  // The leases of disconnected workers end, and sometimes that of a connected one.
  void EndLeases();

 private:
  struct Closure {
    ClosureId closure;
    Attempt attempt{};  // (0,0): it is not granted
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
  std::vector<Closure> closures_;  // of the evaluation in progress
  std::uint64_t rounds_ = 0, completed_ = 0;
};

}  // namespace evergrad::simulation

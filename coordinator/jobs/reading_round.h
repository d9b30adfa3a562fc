// A round of closures that only read: the describe closure of the job, the closures of an
// evaluation, or an export closure. Pure; only the control executor calls it.
//
// These closures push no updates and are in no ledger, so each of them may be granted again at any
// time. Only the answer to the newest attempt of a closure counts. The closure numbers contain the
// number of the round, so an answer to a former round matches no closure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/time/clock.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class ReadingRound {
 public:
  struct Closure {
    std::uint64_t number = 0;
    Attempt attempt;  // (0,0) if it is not granted
    TaskId worker;
    std::uint32_t failures = 0, stalls = 0;  // Failures in a row, and how often its work stalled.
    MonoTime not_before{0};                  // It is not granted before this time.
    bool done = false;
    v1::ClosureMetrics metrics;
  };

  // Begins another round. Answers to the former round are void.
  void Begin(std::uint64_t closures, MonoTime not_before) {
    Clear();
    closures_.resize(closures);
    ++round_;
    for (std::uint64_t i = 0; i < closures; ++i) {
      closures_[i].number = (round_ << 32) + i;
      closures_[i].not_before = not_before;
    }
  }
  void Clear() {
    closures_.clear();
    first_ = done_ = 0;
  }

  bool empty() const { return closures_.empty(); }
  // Number of closures that are not done.
  std::uint64_t left() const { return closures_.size() - done_; }
  const std::vector<Closure>& closures() const { return closures_; }

  Closure* Find(std::uint64_t number) {
    const std::uint64_t index = number & 0xffffffffu;
    return number >> 32 != round_ || index >= closures_.size() ? nullptr : &closures_[index];
  }
  // Returns the closure that runs as `attempt`, or null if it is done or has a newer attempt.
  Closure* Running(std::uint64_t number, Attempt attempt) {
    Closure* const closure = Find(number);
    return closure != nullptr && !closure->done && attempt != Attempt{} &&
                   closure->attempt == attempt
               ? closure
               : nullptr;
  }
  // Returns the closure that `worker` runs as `attempt`, or null.
  Closure* HeldBy(TaskId worker, std::uint64_t number, Attempt attempt) {
    Closure* const closure = Running(number, attempt);
    return closure != nullptr && closure->worker == worker ? closure : nullptr;
  }
  // Returns the first closure that can be granted now, or null.
  Closure* Waiting(MonoTime now) {
    while (first_ < closures_.size() && closures_[first_].done) ++first_;
    const auto found = std::find_if(closures_.begin() + static_cast<std::ptrdiff_t>(first_),
                                    closures_.end(), [&](const Closure& closure) {
                                      return !closure.done && closure.attempt == Attempt{} &&
                                             closure.not_before <= now;
                                    });
    return found == closures_.end() ? nullptr : &*found;
  }
  void Accept(Closure* closure, const v1::ClosureMetrics& metrics) {
    closure->done = true;
    closure->metrics = metrics;
    ++done_;
  }
  // Makes the closures that `worker` runs grantable again. ReleaseAll does this for all workers.
  void Release(TaskId worker) {
    for (Closure& closure : closures_) {
      if (!closure.done && closure.worker == worker) closure.attempt = Attempt{};
    }
  }
  void ReleaseAll() {
    for (Closure& closure : closures_) {
      if (!closure.done) closure.attempt = Attempt{};
    }
  }

 private:
  std::vector<Closure> closures_;
  std::size_t first_ = 0, done_ = 0;  // All closures before first_ are done.
  std::uint64_t round_ = 0;
};

}  // namespace evergrad::coordinator

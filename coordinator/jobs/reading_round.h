// A round of closures that only read: one that describes the job, those of an evaluation, or one
// that exports. Pure; the control executor's.
//
// They push nothing and stand in no ledger, so any of them may be granted again at any time; only
// the answer to its newest attempt counts. They have numbers of their own, which name the round, so
// an answer to a former round finds nothing.
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
    Attempt attempt;  // (0,0): not granted
    TaskId worker;
    std::uint32_t failures = 0, stalls = 0;  // Failures in a row, and how often it stood still.
    MonoTime not_before{0};                  // It is not granted before.
    bool done = false;
    v1::ClosureMetrics metrics;
  };

  // Another round begins; answers to the former one are void.
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
  std::uint64_t left() const { return closures_.size() - done_; }  // Not done.
  const std::vector<Closure>& closures() const { return closures_; }

  Closure* Find(std::uint64_t number) {
    const std::uint64_t index = number & 0xffffffffu;
    return number >> 32 != round_ || index >= closures_.size() ? nullptr : &closures_[index];
  }
  // The closure that runs as `attempt`; null: it is done, or runs as another one by now.
  Closure* Running(std::uint64_t number, Attempt attempt) {
    Closure* const closure = Find(number);
    return closure != nullptr && !closure->done && attempt != Attempt{} &&
                   closure->attempt == attempt
               ? closure
               : nullptr;
  }
  // The same, if `worker` runs it.
  Closure* HeldBy(TaskId worker, std::uint64_t number, Attempt attempt) {
    Closure* const closure = Running(number, attempt);
    return closure != nullptr && closure->worker == worker ? closure : nullptr;
  }
  // The first one that can be granted; null: there is none now.
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
  // What `worker` runs, or what anybody runs, can be granted again.
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
  std::size_t first_ = 0, done_ = 0;  // All before first_ are done.
  std::uint64_t round_ = 0;
};

}  // namespace evergrad::coordinator

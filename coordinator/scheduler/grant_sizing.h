// How much work a worker may hold ahead, so that it does not feel a short absence of the
// coordinator. Pure.
#pragma once

#include <chrono>
#include <cstdint>

#include "common/time/clock.h"

namespace evergrad::coordinator {

struct GrantSizing {
  std::chrono::milliseconds coordinator_away{5000};  // work in hand should last this long
  std::uint32_t attempts_min = 2;                    // one running and one queued
  std::uint32_t attempts_max = 256;
};

// Seconds that one closure takes a worker: an average in which the newest weighs a quarter.
class ClosureRate {
 public:
  // A closure ended now; `began_max` is the later of its grant and the end of the one before.
  void OnDone(MonoTime now, MonoTime began_max);
  double seconds_per_closure() const { return seconds_; }  // 0: not known yet

 private:
  double seconds_ = 0;
};

// Attempts that a worker may hold now. `remaining`: closures not granted yet before the next
// barrier; near the end each worker gets a shrinking part of what is left, so that nobody waits
// long for the slowest. Never below one.
std::uint32_t AttemptsAhead(const GrantSizing& sizing, double seconds_per_closure,
                            std::uint64_t remaining, std::uint32_t workers);

}  // namespace evergrad::coordinator

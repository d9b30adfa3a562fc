// Computes how many attempts a worker may hold at the same time. With the attempts that it has not
// begun, a worker continues while the coordinator is unreachable for a short time. Pure.
#pragma once

#include <chrono>
#include <cstdint>

#include "common/time/clock.h"

namespace evergrad::coordinator {

struct GrantSizing {
  // The attempts of a worker should last this long.
  std::chrono::milliseconds coordinator_away{5000};
  std::uint32_t attempts_min = 2;  // one running and one queued
  std::uint32_t attempts_max = 256;
};

// Average seconds per closure of a worker. The newest closure has a weight of a quarter.
class ClosureRate {
 public:
  // Records the end of a closure. `began_max` is the time of its grant or of the end of the
  // previous closure, whichever is later.
  void OnDone(MonoTime now, MonoTime began_max);
  double seconds_per_closure() const { return seconds_; }  // 0 if not known yet

 private:
  double seconds_ = 0;
};

// Returns the number of attempts that a worker may hold now, at least one. `remaining` is the
// number of closures before the next barrier that are not granted yet. Near the end each worker
// gets a shrinking part of these closures, because other workers must not wait long for the slowest
// worker.
std::uint32_t AttemptsAhead(const GrantSizing& sizing, double seconds_per_closure,
                            std::uint64_t remaining, std::uint32_t workers);

}  // namespace evergrad::coordinator

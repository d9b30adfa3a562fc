#include "coordinator/scheduler/grant_sizing.h"

#include <algorithm>
#include <cmath>

namespace evergrad::coordinator {

void ClosureRate::OnDone(MonoTime now, MonoTime began_max) {
  // Answers of one batch arrive at the same time. The minimum prevents a duration of 0.
  const double seconds = std::max(1e-5, std::chrono::duration<double>(now - began_max).count());
  seconds_ = seconds_ == 0 ? seconds : 0.75 * seconds_ + 0.25 * seconds;
}

std::uint32_t AttemptsAhead(const GrantSizing& sizing, double seconds_per_closure,
                            std::uint64_t remaining, std::uint32_t workers) {
  std::uint64_t wanted = sizing.attempts_min;
  if (seconds_per_closure > 0) {
    const double away = std::chrono::duration<double>(sizing.coordinator_away).count();
    wanted = static_cast<std::uint64_t>(std::min(std::ceil(away / seconds_per_closure), 1e9));
  }
  const std::uint64_t part = remaining / (2ull * std::max<std::uint32_t>(workers, 1)) + 1;
  wanted = std::min(wanted, std::max<std::uint64_t>(part, sizing.attempts_min));
  wanted = std::clamp<std::uint64_t>(wanted, sizing.attempts_min,
                                     std::max(sizing.attempts_min, sizing.attempts_max));
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(wanted, 1));
}

}  // namespace evergrad::coordinator

// Examples a second, where the time was long enough to tell. Pure.
#pragma once

#include <cstdint>
#include <limits>

namespace evergrad::coordinator {

// When an epoch ends is known from the messages of workers and the commits of the journal, which
// come some milliseconds apart. A speed over less time than that would say nothing: several epochs
// that one message ends would be done in no time at all.
inline constexpr double kTimedSecondsMin = 0.01;

// NaN where the time was too short, or nothing was trained.
inline double MeasuredSpeed(std::uint64_t examples, double seconds) {
  if (examples == 0 || !(seconds >= kTimedSecondsMin))
    return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(examples) / seconds;
}

}  // namespace evergrad::coordinator

#include "common/time/clock.h"

namespace evergrad {

MonoTime RealClock::Now() const { return std::chrono::steady_clock::now().time_since_epoch(); }

std::int64_t RealClock::WallMillis() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace evergrad

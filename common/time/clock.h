// The interface of clocks, for dependency injection. Only main.cc creates a real clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace evergrad {

// Monotonic nanoseconds since an arbitrary origin. Wall time is for people and files only.
// Thread-safe.
using MonoTime = std::chrono::nanoseconds;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual MonoTime Now() const = 0;
  // Returns milliseconds since 1970-01-01 UTC. No decision may depend on the wall time.
  virtual std::int64_t WallMillis() const = 0;
};

class RealClock final : public Clock {
 public:
  MonoTime Now() const override;
  std::int64_t WallMillis() const override;
};

}  // namespace evergrad

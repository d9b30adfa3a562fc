// The interface of clocks, for dependency injection: only main.cc creates a real one.
#pragma once

#include <chrono>
#include <cstdint>

namespace evergrad {

// Monotonic nanoseconds since an arbitrary origin, and wall time for people and files only.
// Thread-safe.
using MonoTime = std::chrono::nanoseconds;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual MonoTime Now() const = 0;
  // Milliseconds since 1970-01-01 UTC. No decision may depend on it.
  virtual std::int64_t WallMillis() const = 0;
};

class RealClock final : public Clock {
 public:
  MonoTime Now() const override;
  std::int64_t WallMillis() const override;
};

// A clock that moves only when told. Not thread-safe: for tests and the simulation.
class ManualClock final : public Clock {
 public:
  MonoTime Now() const override { return now_; }
  std::int64_t WallMillis() const override { return wall_ms_; }
  void Advance(MonoTime by) {
    now_ += by;
    wall_ms_ += std::chrono::duration_cast<std::chrono::milliseconds>(by).count();
  }

 private:
  MonoTime now_{0};
  std::int64_t wall_ms_ = 0;
};

}  // namespace evergrad

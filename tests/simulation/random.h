// The random numbers of a walk: SplitMix64 with one 64-bit state, so that a seed gives the same
// walk on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace evergrad::simulation {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 0x1234567) {}
  std::uint64_t Next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }
  bool Chance(double p) { return Unit() < p; }
  // Returns a number in [0, n). n must be above 0 and below 2^32.
  std::size_t Below(std::size_t n) { return static_cast<std::size_t>(((Next() >> 32) * n) >> 32); }

 private:
  std::uint64_t state_;
};

}  // namespace evergrad::simulation

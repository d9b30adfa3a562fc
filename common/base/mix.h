// The digest of float tensors: a sum over elements of Mix(index in the variable, bits), mod 2^64. A sum, so that the
// digests of the partitions of a variable add up to that of the variable, however it is cut. Pure.
#pragma once

#include <cstdint>

namespace evergrad {

// The SplitMix64 finalizer of (index, bits): `index` is the element's position in the whole variable, `bits` its float32 pattern.
inline std::uint64_t Mix(std::uint64_t index, std::uint32_t bits) {
  std::uint64_t x = index * 0x9E3779B97F4A7C15ull + bits + 1;
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  x ^= x >> 31;
  return x;
}

}  // namespace evergrad

// The digest of float tensors: the sum over all elements of Mix(index in the variable, bits), mod
// 2^64. Because the digest is a sum, the digests of a variable's partitions add up to the digest of
// the variable, however the variable is partitioned. Pure functions.
#pragma once

#include <cstdint>

namespace evergrad {

// Returns the finalizer of SplitMix64 (Steele, Lea and Flood, 2014) for `x`. The finalizer is a
// bijection on 64 bits in which each output bit depends on all input bits.
inline std::uint64_t Finalize(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  x ^= x >> 31;
  return x;
}

// Returns the finalizer for the pair (index, bits). `index` is the element's position in the whole
// variable; `bits` is its float32 pattern.
inline std::uint64_t Mix(std::uint64_t index, std::uint32_t bits) {
  return Finalize(index * 0x9E3779B97F4A7C15ull + bits + 1);
}

}  // namespace evergrad

// The digest of float tensors: a sum over elements of Mix(index in the variable, bits), mod 2^64. A
// sum, so that the digests of the partitions of a variable add up to that of the variable, however
// it is cut. Pure.
#pragma once

#include <cstdint>

namespace evergrad {

// SplitMix64's finalizer (Steele, Lea and Flood, 2014): a bijection of 64 bits in which each bit
// depends on all.
inline std::uint64_t Finalize(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  x ^= x >> 31;
  return x;
}

// The finalizer of (index, bits): `index` is the element's position in the whole variable, `bits`
// its float32 pattern.
inline std::uint64_t Mix(std::uint64_t index, std::uint32_t bits) {
  return Finalize(index * 0x9E3779B97F4A7C15ull + bits + 1);
}

}  // namespace evergrad

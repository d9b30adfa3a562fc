// Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as
// 1, 2, 3", SC'11).
//
// All random numbers in training are functions of (key, counter), so any element can be computed
// anywhere, in any order, on any backend, with the same bits. Pure functions; thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace evergrad::random {

using Block = std::array<std::uint32_t, 4>;

// Returns one Philox 4x32-10 block.
Block Philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high);

// Returns a key from a seed and a name ("dense/kernel"): the first 8 bytes of a fixed 64-bit hash
// (FNV-1a, then the SplitMix64 finalizer).
std::uint64_t KeyOf(std::uint64_t seed, absl::string_view name);

// Returns a uniform number in [0,1) with 24 bits. Element i is word i % 4 of block i / 4.
float Uniform(std::uint64_t key, std::uint64_t index);
// Returns a standard normal number, computed in double by Box-Muller from words 0 and 1 of the
// block `index`, and then rounded to float. The function has its own logarithm and cosine, so that
// its bits do not depend on a C library.
float Normal(std::uint64_t key, std::uint64_t index);
// Returns a normal number with mean 0 and stddev 1 whose magnitude is below 2, as in Keras'
// truncated_normal. A number that is too large is drawn again, from the next two words of the
// block, and after them from the block with the next high counter.
float TruncatedNormal(std::uint64_t key, std::uint64_t index);
// Computes the values of index, index + 1, …, several at a time, with the same bits.
void TruncatedNormals(std::uint64_t key, std::uint64_t index, std::span<float> out);
// Returns a uniform integer of 64 bits.
std::uint64_t Bits64(std::uint64_t key, std::uint64_t index);

// A permutation of [0, n) without a table. The permutation is a 4-round Feistel network with cycle
// walking over the next power of two that has an even exponent.
class Permutation {
 public:
  Permutation(std::uint64_t n, std::uint64_t key);
  std::uint64_t size() const { return n_; }
  // Returns the image of `i`, which is below n.
  std::uint64_t operator()(std::uint64_t i) const;

 private:
  std::uint64_t n_;
  std::uint64_t key_;
  int half_bits_;
};

// Returns 64 random bits from the operating system, for process uids and job uids. All other random
// numbers have seeds.
std::uint64_t EntropyFromOs();

}  // namespace evergrad::random

#include "common/random/philox.h"

#include <sys/random.h>

#include <cerrno>
#include <cmath>

#include "common/base/check.h"

namespace evergrad::random {
namespace {

constexpr int kRounds = 10;
constexpr int kFeistelRounds = 4;

std::uint64_t Finalize(std::uint64_t x) {  // SplitMix64's.
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  x ^= x >> 31;
  return x;
}

// Box-Muller; the first uniform is in (0,1], so the logarithm is finite.
double NormalOf(std::uint32_t a, std::uint32_t b) {
  const double u1 = (static_cast<double>(a) + 1.0) * 0x1p-32;
  const double u2 = static_cast<double>(b) * 0x1p-32;
  return std::sqrt(-2.0 * std::log(u1)) * std::cos(6.283185307179586476925286766559 * u2);
}

}  // namespace

Block Philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high) {
  std::uint32_t c0 = static_cast<std::uint32_t>(counter_low), c1 = static_cast<std::uint32_t>(counter_low >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(counter_high), c3 = static_cast<std::uint32_t>(counter_high >> 32);
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * c0;
    const std::uint64_t p1 = 0xCD9E8D57ull * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

std::uint64_t KeyOf(std::uint64_t seed, absl::string_view name) {
  std::uint64_t h = 0xCBF29CE484222325ull;
  const auto add = [&h](std::uint8_t byte) {
    h ^= byte;
    h *= 0x100000001B3ull;
  };
  for (int i = 0; i < 8; ++i) add(static_cast<std::uint8_t>(seed >> (8 * i)));
  for (char c : name) add(static_cast<std::uint8_t>(c));
  return Finalize(h);
}

float Uniform(std::uint64_t key, std::uint64_t index) {
  const std::uint32_t bits = Philox(key, index / 4, 0)[index % 4];
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

float Normal(std::uint64_t key, std::uint64_t index) {
  const Block block = Philox(key, index, 0);
  return static_cast<float>(NormalOf(block[0], block[1]));
}

float TruncatedNormal(std::uint64_t key, std::uint64_t index) {
  // Each draw is outside with probability 0.0455, so this ends.
  for (std::uint64_t high = 0;; ++high) {
    const Block block = Philox(key, index, high);
    for (int lane = 0; lane < 4; lane += 2) {
      const float x = static_cast<float>(NormalOf(block[lane], block[lane + 1]));
      if (std::fabs(x) < 2.0f) return x;
    }
  }
}

std::uint64_t Bits64(std::uint64_t key, std::uint64_t index) {
  const Block block = Philox(key, index, 0);
  return static_cast<std::uint64_t>(block[1]) << 32 | block[0];
}

Permutation::Permutation(std::uint64_t n, std::uint64_t key) : n_(n), key_(key), half_bits_(1) {
  while (half_bits_ < 32 && (n_ - 1) >> (2 * half_bits_) != 0 && n_ > 0) ++half_bits_;
}

std::uint64_t Permutation::operator()(std::uint64_t i) const {
  EG_CHECK(i < n_);
  const std::uint64_t mask = (1ull << half_bits_) - 1;
  // The domain is at most four times n, so the walk takes four steps on average at worst.
  do {
    std::uint64_t left = i >> half_bits_, right = i & mask;
    for (int round = 0; round < kFeistelRounds; ++round) {
      const std::uint64_t f = Philox(key_, right, static_cast<std::uint64_t>(round))[0];
      const std::uint64_t next = left ^ (f & mask);
      left = right;
      right = next;
    }
    i = left << half_bits_ | right;
  } while (i >= n_);
  return i;
}

std::uint64_t EntropyFromOs() {
  std::uint64_t bits = 0;
  ssize_t got;
  do {
    got = getrandom(&bits, sizeof(bits), 0);
  } while (got < 0 && errno == EINTR);
  EG_CHECK(got == static_cast<ssize_t>(sizeof(bits)));
  return bits;
}

}  // namespace evergrad::random

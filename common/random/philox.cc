#include "common/random/philox.h"

#include <sys/random.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>

#include "common/base/check.h"
#include "common/base/mix.h"

namespace evergrad::random {
namespace {

constexpr int kRounds = 10;
constexpr int kFeistelRounds = 4;

// Returns a standard normal number by Box-Muller: sqrt(-2 ln u1) cos(2 pi u2) with u1 = (a + 1) /
// 2^32 and u2 = b / 2^32. u1 is in (0,1], so the logarithm is finite. The result is computed in
// double with an error of about 1e-16 and rounded once. The code has no branch and does not use the
// C library, so the bits are the same everywhere and several elements can be computed in parallel.
inline float NormalOf(std::uint32_t a, std::uint32_t b) {
  // The logarithm is computed by a series: a + 1 = 2^e m with m from sqrt(1/2) to sqrt(2), and ln m
  // = 2 atanh((m - 1) / (m + 1)).
  constexpr double kTwo52 = 0x1p52;
  constexpr std::uint64_t kTwo52Bits = 0x4330000000000000, kRootHalfBits = 0x3fe6a09e667f3bcd;
  const double n = std::bit_cast<double>(a | kTwo52Bits) - kTwo52 + 1.0;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(n), e = (bits - kRootHalfBits) >> 52;
  const double m = std::bit_cast<double>(bits - (e << 52));
  const double exponent = std::bit_cast<double>(e | kTwo52Bits) - (kTwo52 + 32);
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double series = 1.0 / 21;
  for (const double odd : {19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0})
    series = series * z + 1.0 / odd;
  const double log = exponent * 0.693147180559945309417232121458 + 2.0 * s * series;
  // `quarter` is the number of the nearest quarter of a turn. The number and the remaining angle
  // are exact in integers.
  const std::uint32_t quarter = (b + (1u << 29)) >> 30;
  const double x = static_cast<double>(static_cast<std::int32_t>(b - (quarter << 30))) *
                   (6.283185307179586476925286766559 * 0x1p-32),
               y = x * x;
  double cosine = 1.0 / 20922789888000, sine = -1.0 / 1307674368000;
  for (const double factorial :
       {-87178291200.0, 479001600.0, -3628800.0, 40320.0, -720.0, 24.0, -2.0, 1.0})
    cosine = cosine * y + 1.0 / factorial;
  for (const double factorial : {6227020800.0, -39916800.0, 362880.0, -5040.0, 120.0, -6.0, 1.0})
    sine = sine * y + 1.0 / factorial;
  sine *= x;
  const std::uint64_t odd = -std::uint64_t{quarter & 1},
                      sign = std::uint64_t{(quarter + 1) & 2} << 62;
  const std::uint64_t turned =
      ((std::bit_cast<std::uint64_t>(sine) & odd) | (std::bit_cast<std::uint64_t>(cosine) & ~odd)) ^
      sign;
  return static_cast<float>(std::sqrt(-2.0 * log) * std::bit_cast<double>(turned));
}

// TwoWords computes the first two words of kBlocks blocks: a[i] and b[i] are the words of the block
// with the counter (index + i, 0).
constexpr std::size_t kBlocks = 8;
void TwoWords(std::uint64_t key, std::uint64_t index, std::uint32_t* a, std::uint32_t* b) {
#if defined(__AVX2__)
  // Computes four blocks at a time, with each number in the lower half of 64 bits. The upper half
  // is ignored.
  const __m256i first = _mm256_set1_epi64x(0xD2511F53), second = _mm256_set1_epi64x(0xCD9E8D57);
  for (std::size_t i = 0; i < kBlocks; i += 4) {
    const __m256i counter = _mm256_add_epi64(_mm256_set1_epi64x(static_cast<long long>(index + i)),
                                             _mm256_set_epi64x(3, 2, 1, 0));
    __m256i c0 = counter, c1 = _mm256_srli_epi64(counter, 32), c2 = _mm256_setzero_si256(), c3 = c2;
    auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < kRounds; ++round) {
      const __m256i p0 = _mm256_mul_epu32(c0, first), p1 = _mm256_mul_epu32(c2, second);
      c0 =
          _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1), _mm256_set1_epi64x(k0));
      c2 =
          _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3), _mm256_set1_epi64x(k1));
      c1 = p1;
      c3 = p0;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    const __m256i lower = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(a + i),
                     _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(c0, lower)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(b + i),
                     _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(c1, lower)));
  }
#else
  for (std::size_t i = 0; i < kBlocks; ++i) {
    const Block block = Philox(key, index + i, 0);
    a[i] = block[0];
    b[i] = block[1];
  }
#endif
}

}  // namespace

Block Philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high) {
  std::uint32_t c0 = static_cast<std::uint32_t>(counter_low),
                c1 = static_cast<std::uint32_t>(counter_low >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(counter_high),
                c3 = static_cast<std::uint32_t>(counter_high >> 32);
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
  return NormalOf(block[0], block[1]);
}

float TruncatedNormal(std::uint64_t key, std::uint64_t index) {
  // Each draw is rejected with probability 0.0455, so the loop ends.
  for (std::uint64_t high = 0;; ++high) {
    const Block block = Philox(key, index, high);
    for (int word = 0; word < 4; word += 2) {
      const float x = NormalOf(block[word], block[word + 1]);
      if (std::fabs(x) < 2.0f) return x;
    }
  }
}

void TruncatedNormals(std::uint64_t key, std::uint64_t index, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); i += kBlocks) {
    std::uint32_t a[kBlocks], b[kBlocks];
    float x[kBlocks];
    TwoWords(key, index + i, a, b);
    for (std::size_t k = 0; k < kBlocks; ++k) x[k] = NormalOf(a[k], b[k]);
    const std::size_t count = std::min(kBlocks, out.size() - i);
    for (std::size_t k = 0; k < count; ++k)
      out[i + k] = std::fabs(x[k]) < 2.0f ? x[k] : TruncatedNormal(key, index + i + k);
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
  // The domain is at most four times n, so the walk takes at most four steps on average.
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

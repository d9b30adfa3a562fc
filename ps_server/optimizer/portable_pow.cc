#include "ps_server/optimizer/portable_pow.h"

#include <bit>
#include <cmath>
#include <cstdint>

namespace evergrad::ps_server::optimizer {
namespace {

constexpr double kLn2 = 0.69314718055994530942;
constexpr double kInverseLn2 = 1.44269504088896340736;

}  // namespace

float PortablePow(float x, double y) {
  if (y == 0) return 1.0f;
  if (!(x > 0)) return x == 0 ? 0.0f : x;  // NaN stays NaN
  if (std::isinf(x)) return x;
  // x = m 2^e with m in [1/sqrt 2, sqrt 2). The bits of x as a double contain m and e, because a
  // float is never a subnormal double. log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.1716.
  std::uint64_t bits = std::bit_cast<std::uint64_t>(static_cast<double>(x));
  int e = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.41421356237309504880) m *= 0.5, ++e;
  const double s = (m - 1) / (m + 1), s2 = s * s;
  double series = 0;
  // The omitted terms are below 2^-62.
  for (int k = 21; k >= 1; k -= 2) series = series * s2 + 1.0 / k;
  const double log2_x = e + 2 * s * series * kInverseLn2;

  // The result is 2^z = 2^n e^r with |r| <= ln 2 / 2.
  const double z = y * log2_x;
  if (z > 200) return HUGE_VALF;
  if (z < -200) return 0.0f;
  const double n = std::floor(z + 0.5), r = (z - n) * kLn2;
  double exponential = 1;
  for (int k = 14; k >= 1; --k) exponential = 1 + exponential * r / k;
  const double scale =
      std::bit_cast<double>(static_cast<std::uint64_t>(1023 + static_cast<int>(n)) << 52);
  return static_cast<float>(exponential * scale);
}

}  // namespace evergrad::ps_server::optimizer

#include "common/tensor/convert.h"

#include <algorithm>
#include <bit>
#include <cstring>

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "common/base/check.h"

namespace evergrad::tensor {
namespace {

constexpr std::uint32_t kFloatInf = 0x7f800000;
// Number of elements that NarrowInPlace and WidenInPlace convert at once, through a block on the
// stack.
constexpr std::size_t kBlock = 512;

inline std::uint16_t ToBFloat16(std::uint32_t bits) {
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40;
  return static_cast<std::uint16_t>((bits & 0x7fffffff) > kFloatInf ? nan : rounded);
}

inline std::uint32_t FromBFloat16(std::uint16_t h) {
  const std::uint32_t bits = std::uint32_t{h} << 16;
  return (bits & 0x7fffffff) > kFloatInf ? bits | 0x400000 : bits;
}

inline std::uint16_t ToFloat16(std::uint32_t bits) {
  const std::uint32_t sign = (bits >> 16) & 0x8000, x = bits & 0x7fffffff;
  std::uint32_t h = 0;
  // 65520 is half way between the largest float16 and the next value above.
  if (x > kFloatInf) {
    h = 0x7e00 | ((x >> 13) & 0x3ff);
  } else if (x >= 0x477ff000) {
    h = 0x7c00;
  } else if (x >= 0x38800000) {  // 2^-14: the smallest normal float16
    h = (x + 0xfff + ((x >> 13) & 1) - 0x38000000) >> 13;
  } else {
    // The addition rounds, because a unit in the last place of 0.5 equals the smallest float16.
    h = std::bit_cast<std::uint32_t>(std::bit_cast<float>(x) + 0.5f) - 0x3f000000;
  }
  return static_cast<std::uint16_t>(sign | h);
}

inline std::uint32_t FromFloat16(std::uint16_t h) {
  const std::uint32_t sign = (std::uint32_t{h} & 0x8000) << 16, x = h & 0x7fff;
  if (x >= 0x7c00) return sign | kFloatInf | (x & 0x3ff) << 13 | (x > 0x7c00 ? 0x400000 : 0);
  if (x >= 0x400) return sign | ((x << 13) + 0x38000000);
  return sign | std::bit_cast<std::uint32_t>(static_cast<float>(x) * 0x1p-24f);
}

// Loads with memcpy, which allows any alignment and costs nothing.
inline std::uint16_t Load16(const std::byte* from) {
  std::uint16_t h;
  std::memcpy(&h, from, sizeof h);
  return h;
}
inline std::uint32_t Load32(const float* from) { return std::bit_cast<std::uint32_t>(*from); }
inline void Store16(std::byte* to, std::uint16_t h) { std::memcpy(to, &h, sizeof h); }

void NarrowBFloat16(const float* __restrict from, std::size_t n, std::byte* __restrict to) {
  for (std::size_t i = 0; i < n; ++i) Store16(to + 2 * i, ToBFloat16(Load32(from + i)));
}
void WidenBFloat16(const std::byte* __restrict from, std::size_t n, float* __restrict to) {
  for (std::size_t i = 0; i < n; ++i)
    to[i] = std::bit_cast<float>(FromBFloat16(Load16(from + 2 * i)));
}

void NarrowFloat16(const float* from, std::size_t n, std::byte* to) {
  std::size_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= n; i += 8) {
    const __m128i h =
        _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    std::memcpy(to + 2 * i, &h, sizeof h);
  }
#endif
  for (; i < n; ++i) Store16(to + 2 * i, ToFloat16(Load32(from + i)));
}
void WidenFloat16(const std::byte* from, std::size_t n, float* to) {
  std::size_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= n; i += 8) {
    __m128i h;
    std::memcpy(&h, from + 2 * i, sizeof h);
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(h));
  }
#endif
  for (; i < n; ++i) to[i] = std::bit_cast<float>(FromFloat16(Load16(from + 2 * i)));
}

}  // namespace

void Narrow(WireType type, const float* from, std::size_t n, std::byte* to) {
  switch (type) {
    case WireType::kBFloat16: return NarrowBFloat16(from, n, to);
    case WireType::kFloat16: return NarrowFloat16(from, n, to);
    default:
      EG_CHECK(type == WireType::kFloat32);
      if (n > 0) std::memcpy(to, from, n * sizeof(float));
  }
}

void Widen(WireType type, const std::byte* from, std::size_t n, float* to) {
  switch (type) {
    case WireType::kBFloat16: return WidenBFloat16(from, n, to);
    case WireType::kFloat16: return WidenFloat16(from, n, to);
    default:
      EG_CHECK(type == WireType::kFloat32);
      if (n > 0) std::memcpy(to, from, n * sizeof(float));
  }
}

// The write position stays behind the read position, because each element reads 4 bytes and writes
// 2.
void NarrowInPlace(WireType type, float* values, std::size_t n) {
  if (type == WireType::kFloat32) return;
  std::byte block[kBlock * 2];
  std::byte* const to = reinterpret_cast<std::byte*>(values);
  for (std::size_t i = 0; i < n; i += kBlock) {
    const std::size_t count = std::min(kBlock, n - i);
    Narrow(type, values + i, count, block);
    std::memcpy(to + 2 * i, block, 2 * count);
  }
}

// Before element i is written, the first 4*i bytes have been written. The unread elements begin at
// byte 2*n + 2*i, which is beyond the written bytes because i < n.
void WidenInPlace(WireType type, float* values, std::size_t n) {
  if (type == WireType::kFloat32) return;
  std::byte block[kBlock * 2];
  const std::byte* const from = NarrowHome(type, values, n);
  for (std::size_t i = 0; i < n; i += kBlock) {
    const std::size_t count = std::min(kBlock, n - i);
    std::memcpy(block, from + 2 * i, 2 * count);
    Widen(type, block, count, values + i);
  }
}

bool AllFinite(WireType type, const std::byte* elements, std::size_t n) {
  std::uint32_t bad = 0;
  if (type == WireType::kFloat32) {
    for (std::size_t i = 0; i < n; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, elements + 4 * i, sizeof bits);
      bad |= (bits & kFloatInf) == kFloatInf;
    }
    return bad == 0;
  }
  const std::uint16_t exponent = type == WireType::kBFloat16 ? 0x7f80 : 0x7c00;
  for (std::size_t i = 0; i < n; ++i) bad |= (Load16(elements + 2 * i) & exponent) == exponent;
  return bad == 0;
}

std::uint16_t NarrowOne(WireType type, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return type == WireType::kBFloat16 ? ToBFloat16(bits) : ToFloat16(bits);
}
float WidenOne(WireType type, std::uint16_t element) {
  return std::bit_cast<float>(type == WireType::kBFloat16 ? FromBFloat16(element)
                                                          : FromFloat16(element));
}

}  // namespace evergrad::tensor

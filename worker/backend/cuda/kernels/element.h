// 16-bit elements in kernels: two bytes in memory, a float in arithmetic. A kernel is written once
// for `T`; with float as `T` it compiles to the same code as a kernel that is written for float
// only. Rounding is to nearest, ties to even; NaN stays NaN. The bits equal those of
// common/tensor/convert.h, except that a NaN may have other bits on a device.
#pragma once

#include <cstdint>
#include <cstring>

#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/kernels/team.h"

namespace evergrad::cuda {

EG_HD std::uint32_t BitsOf(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
EG_HD float FloatOf(std::uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

struct BFloat16 {
  std::uint16_t bits;
  BFloat16() = default;
  EG_HD BFloat16(float value) {  // NOLINT(google-explicit-constructor)
    const std::uint32_t b = BitsOf(value);
    bits = static_cast<std::uint16_t>((b & 0x7fffffffu) > 0x7f800000u
                                          ? (b >> 16) | 0x40u
                                          : (b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
  }
  EG_HD operator float() const {
    return FloatOf(static_cast<std::uint32_t>(bits) << 16);
  }  // NOLINT(google-explicit-constructor)
};

struct Float16 {
  std::uint16_t bits;
  Float16() = default;
  EG_HD Float16(float value) {  // NOLINT(google-explicit-constructor)
#ifdef __CUDA_ARCH__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    const std::uint32_t b = BitsOf(value), sign = (b >> 16) & 0x8000u, x = b & 0x7fffffffu;
    std::uint32_t h = 0;
    if (x > 0x7f800000u) h = 0x7e00u | ((x >> 13) & 0x3ffu);
    // 65520 is half way between the largest float16 and the next value above.
    else if (x >= 0x477ff000u)
      h = 0x7c00u;
    else if (x >= 0x38800000u)  // 2^-14: the smallest normal float16
      h = (x + 0xfffu + ((x >> 13) & 1u) - 0x38000000u) >> 13;
    else
      // The addition rounds, because a unit in the last place of 0.5 equals the smallest float16.
      h = BitsOf(FloatOf(x) + 0.5f) - 0x3f000000u;
    bits = static_cast<std::uint16_t>(sign | h);
#endif
  }
  EG_HD operator float() const {  // NOLINT(google-explicit-constructor)
#ifdef __CUDA_ARCH__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    const std::uint32_t sign = (static_cast<std::uint32_t>(bits) & 0x8000u) << 16,
                        x = bits & 0x7fffu;
    if (x >= 0x7c00u)
      return FloatOf(sign | 0x7f800000u | (x & 0x3ffu) << 13 | (x > 0x7c00u ? 0x400000u : 0u));
    if (x >= 0x400u) return FloatOf(sign | ((x << 13) + 0x38000000u));
    return FloatOf(sign | BitsOf(static_cast<float>(x) * 0x1p-24f));
#endif
  }
};

// A group of `kCount` elements, which is read or written by one access, or by several of 16 bytes.
template <typename T, int kCount>
struct alignas(kCount * sizeof(T) < 16 ? kCount * sizeof(T) : 16) Pack {
  T v[kCount];
};

inline bool Aligned(const void* pointer) {
  return (reinterpret_cast<std::uintptr_t>(pointer) & 15) == 0;
}

// The number of elements in an access of 16 bytes.
template <typename T>
inline constexpr int kAccess = 16 / sizeof(T);
template <int kCount, typename T>
EG_HD Pack<T, kCount> Load(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}
template <int kCount, typename T>
EG_HD void Store(T* to, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

template <typename T>
EG_HD const T* As(const void* p) {
  return static_cast<const T*>(p);
}
template <typename T>
EG_HD T* As(void* p) {
  return static_cast<T*>(p);
}

}  // namespace evergrad::cuda

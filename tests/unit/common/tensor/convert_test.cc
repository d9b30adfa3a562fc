// Compares the 16-bit types of the wire with a reference in float64. The reference computes the
// value of each bit pattern by its definition. It rounds by choosing the nearest of all values.
// Then the fast paths are compared with the plain ones, for every way in which an array can be
// divided.
#include "common/tensor/convert.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/random/philox.h"

namespace evergrad::tensor {
namespace {

struct Layout {
  WireType type;
  int exponent_bits, mantissa_bits;
};
constexpr Layout kLayouts[] = {{WireType::kFloat16, 5, 10}, {WireType::kBFloat16, 8, 7}};

// Returns the value that IEEE 754 defines for this magnitude, which must not be NaN or infinite.
double Meaning(const Layout& layout, std::uint32_t magnitude) {
  const int bias = (1 << (layout.exponent_bits - 1)) - 1;
  const auto exponent = static_cast<int>(magnitude >> layout.mantissa_bits);
  const double mantissa = std::ldexp(
      static_cast<double>(magnitude & ((1u << layout.mantissa_bits) - 1)), -layout.mantissa_bits);
  return exponent == 0 ? std::ldexp(mantissa, 1 - bias) : std::ldexp(1 + mantissa, exponent - bias);
}
std::uint32_t InfinityOf(const Layout& layout) {
  return ((1u << layout.exponent_bits) - 1) << layout.mantissa_bits;
}

// Returns the magnitude whose value is nearest to `value`. If two are equally near, it returns the
// even one. If `value` is more than half a step above the largest finite value, it returns
// infinity.
std::uint16_t Nearest(const Layout& layout, float value) {
  const std::uint32_t sign = std::signbit(value) ? 0x8000 : 0, infinity = InfinityOf(layout);
  const double x = std::fabs(static_cast<double>(value));
  std::uint32_t low = 0, high = infinity - 1;  // Meaning() rises with the magnitude
  const double largest = Meaning(layout, high), step = largest - Meaning(layout, high - 1);
  if (x >= largest + step / 2) return static_cast<std::uint16_t>(sign | infinity);
  while (low < high) {  // finds the largest magnitude that is not above x
    const std::uint32_t middle = (low + high + 1) / 2;
    if (Meaning(layout, middle) <= x) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  if (low + 1 < infinity) {
    const double below = x - Meaning(layout, low), above = Meaning(layout, low + 1) - x;
    if (above < below || (above == below && low % 2 == 1)) ++low;
  }
  return static_cast<std::uint16_t>(sign | low);
}

std::vector<std::uint16_t> NarrowAll(WireType type, const std::vector<float>& from) {
  std::vector<std::uint16_t> to(from.size());
  Narrow(type, from.data(), from.size(), reinterpret_cast<std::byte*>(to.data()));
  return to;
}
std::vector<float> WidenAll(WireType type, const std::vector<std::uint16_t>& from) {
  std::vector<float> to(from.size());
  Widen(type, reinterpret_cast<const std::byte*>(from.data()), from.size(), to.data());
  return to;
}
std::uint32_t Bits(float f) { return std::bit_cast<std::uint32_t>(f); }

std::vector<std::uint16_t> AllPatterns() {
  std::vector<std::uint16_t> all(1 << 16);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  return all;
}

// Returns these numbers as float32: every bit pattern of a 16-bit type, every number in the middle
// between two patterns, the float32 neighbours of all these, and random values.
std::vector<float> Interesting(const Layout& layout) {
  std::vector<float> values;
  const auto add = [&](float v) {
    for (const std::uint32_t d : {0u, 1u, ~0u}) {
      const auto near = std::bit_cast<float>(Bits(v) + d);
      values.push_back(near);
      values.push_back(-near);
    }
  };
  for (std::uint32_t m = 0; m + 1 < InfinityOf(layout); ++m) {
    add(static_cast<float>(Meaning(layout, m)));
    add(static_cast<float>((Meaning(layout, m) + Meaning(layout, m + 1)) / 2));
  }
  for (const float v :
       {std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min(),
        std::numeric_limits<float>::min(), std::numeric_limits<float>::infinity(), 65504.f,
        65519.996f, 65520.f, 65536.f, 0x1p-24f, 0x1p-25f, 0x1.8p-25f, 3.3895314e38f, 3.3961776e38f})
    add(v);
  for (std::uint64_t i = 0; i < 400'000; ++i)
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random::Bits64(7, i))));
  return values;
}

TEST_CASE("every 16-bit pattern widens to its value, and narrows to the same pattern") {
  for (const Layout& layout : kLayouts) {
    const std::vector<std::uint16_t> all = AllPatterns();
    const std::vector<float> wide = WidenAll(layout.type, all);
    const std::vector<std::uint16_t> back = NarrowAll(layout.type, wide);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::uint32_t magnitude = all[i] & 0x7fff, infinity = InfinityOf(layout);
      const bool negative = all[i] & 0x8000;
      if (magnitude > infinity) {
        const std::uint32_t quiet = 1u << (layout.mantissa_bits - 1);
        wrong += !std::isnan(wide[i]) || std::signbit(wide[i]) != negative ||
                 back[i] != (all[i] | quiet);
        wrong += Bits(wide[i]) != ((negative ? 0x80000000u : 0) | 0x7f800000 |
                                   ((magnitude | quiet) & ((1u << layout.mantissa_bits) - 1))
                                       << (23 - layout.mantissa_bits));
        continue;
      }
      const double meaning = magnitude == infinity ? std::numeric_limits<double>::infinity()
                                                   : Meaning(layout, magnitude);
      wrong += wide[i] != (negative ? -meaning : meaning) || std::signbit(wide[i]) != negative ||
               back[i] != all[i];
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE(
    "narrowing rounds to the nearest, ties to even, and to infinity beyond the range, and NaN "
    "stays NaN") {
  for (const Layout& layout : kLayouts) {
    const std::vector<float> values = Interesting(layout);
    const std::vector<std::uint16_t> got = NarrowAll(layout.type, values);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        const std::uint32_t kept = (Bits(values[i]) & 0x7fffff) >> (23 - layout.mantissa_bits) |
                                   1u << (layout.mantissa_bits - 1);
        wrong += got[i] != ((Bits(values[i]) >> 16 & 0x8000) | InfinityOf(layout) | kept);
      } else {
        wrong += got[i] != Nearest(layout, values[i]);
      }
      if (wrong == 1) {
        INFO(values[i] << " -> " << got[i]);
        REQUIRE(wrong == 0);
      }
    }
  }
  CHECK(NarrowOne(WireType::kFloat16, 65519.996f) == 0x7bff);
  CHECK(NarrowOne(WireType::kFloat16, 65520.f) == 0x7c00);
  CHECK(NarrowOne(WireType::kBFloat16, std::numeric_limits<float>::max()) == 0x7f80);
}

// The paths with and without the processor's vector instructions must give the same results. For
// each length, the elements that remain after the vector part are tested, too.
TEST_CASE("the conversion of any part of an array has the bits of its elements' conversion") {
  for (const Layout& layout : kLayouts) {
    const std::vector<float> values = Interesting(layout);
    std::size_t wrong = 0;
    const std::vector<std::uint16_t> whole = NarrowAll(layout.type, values);
    for (std::size_t i = 0; i < values.size(); ++i)
      wrong += whole[i] != NarrowOne(layout.type, values[i]);
    const std::vector<std::uint16_t> all = AllPatterns();
    const std::vector<float> wide = WidenAll(layout.type, all);
    for (std::size_t i = 0; i < all.size(); ++i)
      wrong += Bits(wide[i]) != Bits(WidenOne(layout.type, all[i]));
    CHECK(wrong == 0);
    for (std::size_t n = 0; n <= 40; ++n) {
      for (const std::size_t first : {0u, 1u, 3u, 1000u}) {
        std::vector<std::byte> narrow(2 * n + 3, std::byte{0xa5});
        Narrow(layout.type, values.data() + first, n, narrow.data() + 1);  // at an odd address
        std::vector<float> back(n + 1, 42.f);
        Widen(layout.type, narrow.data() + 1, n, back.data());
        for (std::size_t i = 0; i < n; ++i) {
          std::uint16_t element;
          std::memcpy(&element, narrow.data() + 1 + 2 * i, sizeof element);
          wrong +=
              element != whole[first + i] || Bits(back[i]) != Bits(WidenOne(layout.type, element));
        }
        wrong +=
            narrow[0] != std::byte{0xa5} || narrow[2 * n + 1] != std::byte{0xa5} || back[n] != 42.f;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("an array is narrowed and widened in place") {
  for (const WireType type : {WireType::kFloat32, WireType::kFloat16, WireType::kBFloat16}) {
    for (const std::size_t n : {0u, 1u, 2u, 511u, 512u, 513u, 1025u, 70'000u}) {
      std::vector<float> values(n);
      for (std::size_t i = 0; i < n; ++i)
        values[i] = std::ldexp(static_cast<float>(i % 1000) - 499.5f, static_cast<int>(i % 13) - 6);
      std::vector<std::byte> want(n * WireBytes(type));
      Narrow(type, values.data(), n, want.data());
      std::vector<float> same = values;
      NarrowInPlace(type, same.data(), n);
      CHECK((n == 0 || std::memcmp(same.data(), want.data(), want.size()) == 0));
      std::vector<float> wide(n), home(n);
      Widen(type, want.data(), n, wide.data());
      if (n > 0) std::memcpy(NarrowHome(type, home.data(), n), want.data(), want.size());
      WidenInPlace(type, home.data(), n);
      CHECK((n == 0 || std::memcmp(home.data(), wide.data(), n * sizeof(float)) == 0));
    }
  }
}

TEST_CASE("infinity and NaN are detected at any position") {
  for (const WireType type : {WireType::kFloat32, WireType::kFloat16, WireType::kBFloat16}) {
    std::vector<float> values(100, 1.5f);
    std::vector<std::byte> narrow(100 * WireBytes(type));
    const auto finite = [&] {
      Narrow(type, values.data(), values.size(), narrow.data());
      return AllFinite(type, narrow.data(), values.size());
    };
    CHECK(finite());
    for (const std::size_t at : {0u, 57u, 99u}) {
      for (const float bad : {std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity(), std::nanf("")}) {
        values[at] = bad;
        CHECK_FALSE(finite());
      }
      values[at] = 70000.f;  // larger than the largest float16
      CHECK(finite() == (type != WireType::kFloat16));
      values[at] = 1.5f;
    }
  }
}

}  // namespace
}  // namespace evergrad::tensor

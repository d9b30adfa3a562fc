// Arithmetic on numbers that come from outside the process. The functions report an overflow, and
// never wrap around.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace evergrad {

inline std::optional<std::uint64_t> CheckedAdd(std::uint64_t a, std::uint64_t b) {
  std::uint64_t r;
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}
inline std::optional<std::uint64_t> CheckedMul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t r;
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}
// Returns the product of all values, 1 for an empty span, and nullopt on overflow.
inline std::optional<std::uint64_t> CheckedProduct(std::span<const std::uint64_t> values) {
  std::uint64_t product = 1;
  for (std::uint64_t v : values) {
    const auto next = CheckedMul(product, v);
    if (!next) return std::nullopt;
    product = *next;
  }
  return product;
}
constexpr std::uint64_t RoundUp(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace evergrad

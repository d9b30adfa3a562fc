// What gradients and values are on their way between workers and servers. Held and computed is
// float32 (convert.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace evergrad::tensor {

// Numbered as v1::DType is, of which any may come from outside.
enum class WireType : std::uint8_t {
  kSeveral = 0,  // rows of tables that differ, each of its table's type; or nothing is said
  kFloat32 = 1,
  kFloat16 = 3,
  kBFloat16 = 4,
};
// Of one element; 0 for what is none of the three.
constexpr std::size_t WireBytes(WireType t) {
  return t == WireType::kFloat32 ? 4 : t == WireType::kFloat16 || t == WireType::kBFloat16 ? 2 : 0;
}
constexpr const char* WireTypeName(WireType t) {
  return t == WireType::kFloat32    ? "float32"
         : t == WireType::kFloat16  ? "fp16"
         : t == WireType::kBFloat16 ? "bf16"
         : t == WireType::kSeveral  ? "none"
                                    : "another";
}

}  // namespace evergrad::tensor

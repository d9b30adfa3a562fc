// The type of gradients and values on the wire between workers and servers. In the memory of both
// they are float32, and convert.h converts them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace evergrad::tensor {

// The numbers are those of v1::DType; any number may come from outside.
enum class WireType : std::uint8_t {
  // The type is unspecified, or the message has rows of tables with different types. With tables of
  // different types, each row has the type of its table.
  kSeveral = 0,
  kFloat32 = 1,
  kFloat16 = 3,
  kBFloat16 = 4,
};
// Returns the number of bytes per element, or 0 for a value that is not one of the three types.
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

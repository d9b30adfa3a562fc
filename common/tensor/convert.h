// float32 to and from the 16-bit types of the wire.
//
// Narrowing rounds to nearest, ties to even; what is beyond the range becomes an infinity (fp16:
// from 65520 on), NaN stays NaN with its sign and the upper bits of its payload, made quiet.
// Widening is exact. Same bits everywhere: with the processor's instructions, by plain arithmetic,
// in whatever pieces. float32 "converts" by copying. Thread-safe; no allocation. Memory of the
// wire's elements may lie at any address.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/tensor/wire_type.h"

namespace evergrad::tensor {

// `n` elements; `type` is one of the three. The two memories do not overlap.
void Narrow(WireType type, const float* from, std::size_t n, std::byte* to);
void Widen(WireType type, const std::byte* from, std::size_t n, float* to);

// In the memory of `n` floats: the narrow elements take the first bytes of it, and are taken from
// the last ones.
void NarrowInPlace(WireType type, float* values, std::size_t n);
void WidenInPlace(WireType type, float* values, std::size_t n);
// Where WidenInPlace expects them.
inline std::byte* NarrowHome(WireType type, float* values, std::size_t n) {
  return reinterpret_cast<std::byte*>(values + n) - n * WireBytes(type);
}

// Neither NaN nor infinite.
bool AllFinite(WireType type, const std::byte* elements, std::size_t n);

// One element by plain arithmetic: what the fast paths are tested against, and their tails.
std::uint16_t NarrowOne(WireType type, float value);
float WidenOne(WireType type, std::uint16_t element);

}  // namespace evergrad::tensor

// Conversions between float32 and the 16-bit types of the wire.
//
// Narrowing rounds to nearest, ties to even. Values beyond the range become infinities (fp16: from
// 65520 on). NaN stays NaN with its sign and the upper bits of its payload, and becomes quiet.
// Widening is exact. The bits are the same with CPU instructions and with plain arithmetic, and do
// not depend on how an array is divided into calls. With the type float32 the conversion is a copy.
// Thread-safe; no allocation. Wire elements may have any alignment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/tensor/wire_type.h"

namespace evergrad::tensor {

// `type` is one of the three types. The two memories, of `n` elements each, do not overlap.
void Narrow(WireType type, const float* from, std::size_t n, std::byte* to);
void Widen(WireType type, const std::byte* from, std::size_t n, float* to);

// Convert inside the memory of `n` floats. NarrowInPlace writes narrow elements to the first bytes
// of this memory; WidenInPlace reads narrow elements from the last bytes.
void NarrowInPlace(WireType type, float* values, std::size_t n);
void WidenInPlace(WireType type, float* values, std::size_t n);
// Returns the place at which WidenInPlace expects the narrow elements.
inline std::byte* NarrowHome(WireType type, float* values, std::size_t n) {
  return reinterpret_cast<std::byte*>(values + n) - n * WireBytes(type);
}

// Returns whether no element is NaN or infinite.
bool AllFinite(WireType type, const std::byte* elements, std::size_t n);

// Convert one element with plain arithmetic. The fast conversions use these functions for the last
// elements, which do not fill a vector register. Tests compare the fast conversions with these
// functions.
std::uint16_t NarrowOne(WireType type, float value);
float WidenOne(WireType type, std::uint16_t element);

}  // namespace evergrad::tensor

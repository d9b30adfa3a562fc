// The three kinds of a value between its file and the model, and the parsing of numbers. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace evergrad::config {

enum class ValueKind { kText, kInteger, kReal };

// Returns "a text", "an integer" or "a real number".
absl::string_view NameOf(ValueKind kind);

// Return the number that `text` represents, or nullopt. IntegerOf reads a 64-bit integer, and
// RealOf a finite decimal number with or without a point and an exponent. A number may begin with +
// or -. Spaces, other bases and words such as nan are refused.
std::optional<std::int64_t> IntegerOf(absl::string_view text);
std::optional<double> RealOf(absl::string_view text);

// Returns whether `value` is an integer that a double represents exactly (at most 2^53 in
// magnitude).
bool IsExactInteger(double value);

}  // namespace evergrad::config

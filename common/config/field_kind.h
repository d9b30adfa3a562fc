// What a chain of transforms makes of a value: what a job file is checked with, and what a reader
// follows.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/config/job_spec.h"

namespace evergrad::config {

enum class ValueKind { kText, kInteger, kReal };

// Of a csv field's `type`.
ValueKind KindOf(const FieldSpec& field);
// What `transform` makes of a value of `kind`. InvalidArgument: it takes none of that kind.
absl::StatusOr<ValueKind> KindAfter(const Transform& transform, ValueKind kind);
// After all of its transforms: kInteger (int64) or kReal (float32). InvalidArgument naming the
// transform; a text at the end.
absl::StatusOr<ValueKind> KindOfField(const FieldSpec& field);
// The number that a text is: an integer of 64 bits; a finite number of decimal digits, with a point
// and an exponent where it has them. A sign may be
// + or -; spaces, other bases and words like nan make it none: nullopt.
std::optional<std::int64_t> IntegerOf(absl::string_view text);
std::optional<double> RealOf(absl::string_view text);

}  // namespace evergrad::config

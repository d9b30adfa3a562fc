// The kinds of value of a field with a typed column: int, float or string. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "common/data_formats/data_spec.h"
#include "common/data_formats/value_kind.h"

namespace evergrad::config {

// Returns the kind of the values that a field of this `type` reads from the file.
ValueKind KindOf(const FieldSpec& field);
// Returns the kind of the values after all transforms of the field: kInteger (int64) or kReal
// (float32). Returns InvalidArgument if a transform does not take the kind of its input, if the
// field has two vocabularies, or if the result is a text.
absl::StatusOr<ValueKind> KindOfField(const FieldSpec& field);
// Returns the index of the field's transform that is learned from the training data
// (TransformType::learned). If no transform is learned, returns the number of transforms.
std::size_t LearnedTransform(const FieldSpec& field);

}  // namespace evergrad::config

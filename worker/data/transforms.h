// The computation of each transform, for every format. common/data_formats has the settings and the
// kinds of value. coordinator/runs/model/load.py computes the same transforms with NumPy.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "common/data_formats/data_spec.h"
#include "worker/data/typed_value.h"

namespace evergrad::worker {

// Computes the result of a transform for one value. The value has the kind for which the step was
// made. A text in the result is a view into the argument. Returns InvalidArgument if the transform
// has no result for this value. Any thread may call the function, because it has no state that
// changes.
using TransformStep = std::function<absl::StatusOr<Value>(const Value&)>;

// Returns the computation of a transform. Returns InvalidArgument if the transform does not take
// values of `kind`, or if it has no computation because it is learned from the training data
// (config::TransformType::learned).
absl::StatusOr<TransformStep> MakeTransformStep(const config::Transform& transform,
                                                config::ValueKind kind);

}  // namespace evergrad::worker

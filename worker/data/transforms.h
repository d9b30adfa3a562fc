// The computation of each transform, for every format. The settings and the kinds of value are in
// common/data_formats; load.py computes the same with NumPy.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "common/data_formats/data_spec.h"
#include "worker/data/typed_value.h"

namespace evergrad::worker {

// Computes the result for one value of the kind that the step was made for. A text in the result is
// a view into the argument. InvalidArgument: the transform has no result for this value. Immutable,
// so it may be called from any thread.
using TransformStep = std::function<absl::StatusOr<Value>(const Value&)>;

// InvalidArgument: the transform does not take values of `kind`, or it is learned from the training
// data (config::TransformType::learned) and has no computation of its own.
absl::StatusOr<TransformStep> MakeTransformStep(const config::Transform& transform,
                                                config::ValueKind kind);

}  // namespace evergrad::worker

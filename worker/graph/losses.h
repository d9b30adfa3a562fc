// Parses the losses of a job from its spec, and checks their labels. The backend computes the
// losses (Backend::ComputeLoss). Pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/config/job_spec.h"
#include "common/tensor/tensor.h"
#include "worker/backend/backend.h"

namespace evergrad::worker {

// Returns OK if `result` reports no bad label, and otherwise a UserError with the bad value, the
// number of classes and the example. A label is bad if it is not a class or, for binary losses, not
// in 0..1.
absl::Status CheckLabels(const Loss& loss, const LossResult& result);

// Parses a spec for an output of the given shape. UserErrors name the loss.
absl::StatusOr<Loss> MakeLoss(const config::LossSpec& spec, const tensor::Shape& output,
                              absl::string_view output_activation);

// Returns "job.yaml:30:5: loss `mean_squared_error`: TEXT".
absl::Status LossError(const config::LossSpec& spec, absl::string_view text);

}  // namespace evergrad::worker

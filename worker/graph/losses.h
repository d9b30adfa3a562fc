// The losses of a job: parsed from its spec, and the check of their labels. The backend computes
// them (Backend::ComputeLoss). Pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/config/job_spec.h"
#include "common/tensor/tensor.h"
#include "worker/backend/backend.h"

namespace evergrad::worker {

// UserError for a label that is not a class (or, for binary, outside 0..1), naming value, classes
// and example; OK if `result` reports none.
absl::Status CheckLabels(const Loss& loss, const LossResult& result);

// Parses a spec for an output of the given shape. UserError that names the loss.
absl::StatusOr<Loss> MakeLoss(const config::LossSpec& spec, const tensor::Shape& output,
                              absl::string_view output_activation);

// "job.yaml:30:5: loss `mean_squared_error`: TEXT"
absl::Status LossError(const config::LossSpec& spec, absl::string_view text);

}  // namespace evergrad::worker

// The losses of a job: read from its spec, and what became of their labels. The backend computes
// them (Backend::ComputeLoss). Pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/config/job_spec.h"
#include "common/tensor/tensor.h"
#include "worker/backend/backend.h"

namespace evergrad::worker {

// UserError: a label that is no class (or, for binary, outside 0..1), naming value, classes and
// example; OK where `result` reports none.
absl::Status CheckLabels(const Loss& loss, const LossResult& result);

// Reads a spec against the shape of the output that it names. UserError naming the loss.
absl::StatusOr<Loss> MakeLoss(const config::LossSpec& spec, const tensor::Shape& output,
                              absl::string_view output_activation);

// "job.yaml:30:5: loss `mean_squared_error`: TEXT"
absl::Status LossError(const config::LossSpec& spec, absl::string_view text);

}  // namespace evergrad::worker

// The losses of Keras 2.9 and their gradients, and accuracy, over one batch. Pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/config/job_spec.h"
#include "common/tensor/tensor.h"

namespace evergrad::worker {

enum class LossType { kSparseCategoricalCrossentropy, kBinaryCrossentropy, kMeanSquaredError };

// A loss over an output of `rows` x `columns` per example. An example's loss is the mean over its rows (sparse categorical) or
// over its elements (the others), as Keras reduces.
struct Loss {
  LossType type = LossType::kMeanSquaredError;
  bool from_logits = false;
  bool accuracy = false;  // count correct examples
  std::int64_t rows = 1, columns = 1;

  std::int64_t label_elements() const { return type == LossType::kSparseCategoricalCrossentropy ? rows : rows * columns; }
};

struct LossValue {
  double sum = 0;            // over examples
  std::int64_t correct = 0;  // examples
};

// `gradient` of the batch's mean loss by `output` is overwritten; empty: not wanted.
// UserError: a label that is no class (or, for binary, outside 0..1), naming value, classes and example.
absl::StatusOr<LossValue> ComputeLoss(const Loss& loss, std::int64_t batch, std::span<const float> output, std::span<const float> labels,
                                      std::span<float> gradient);

// Reads a spec against the shape of the output that it names. UserError naming the loss.
absl::StatusOr<Loss> MakeLoss(const config::LossSpec& spec, const tensor::Shape& output, absl::string_view output_activation);

// "job.yaml:30:5: loss `mean_squared_error`: TEXT"
absl::Status LossError(const config::LossSpec& spec, absl::string_view text);

}  // namespace evergrad::worker

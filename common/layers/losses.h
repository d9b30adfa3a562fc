// The table of losses: their keys, their valid outputs, and their number of labels. Pure.
//
// Shapes describe one example. The errors of CheckLoss are InvalidArgument; the caller prepends the
// place and the name of the loss.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/layers/kinds.h"
#include "common/layers/layer_spec.h"
#include "common/schema/schema.h"
#include "common/tensor/tensor.h"

namespace evergrad::config {

struct LossDescriptor {
  std::string name;
  bool built = true;
  LossType kind = LossType::kMeanSquaredError;  // valid if `built`
  // Whether the loss compares classes, so that an example is either right or wrong.
  bool has_classes = false;
  // The activation that turns logits into probabilities, or "". Only a loss with such an activation
  // has the key `from_logits`, whose value true is refused if the output already ends in this
  // activation.
  std::string activation = {};
  // With true there is one label for each row of the output, where a row runs along the last axis.
  // With false there is one label for each element.
  bool label_per_row = false;
  std::uint64_t classes_min = 0;  // smallest size of the last axis
};

// Returns the losses in the order in which messages and the reference list them.
const std::vector<LossDescriptor>& Losses();
// Reads, writes and explains the losses that are built.
const Variant<LossSpec>& LossVariant();

// Checks whether the loss accepts an output of this shape from a layer with this activation.
absl::Status CheckLoss(const LossSpec& spec, const tensor::Shape& output,
                       absl::string_view output_activation);
// Returns the number of labels of one example for an output of this shape.
std::uint64_t LabelElements(const LossDescriptor& loss, const tensor::Shape& output);

}  // namespace evergrad::config

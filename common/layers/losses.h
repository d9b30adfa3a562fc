// The table of losses: their keys, which outputs they take, and how many labels they want. Pure.
//
// Shapes are of one example. The errors of the rule are InvalidArgument without the place and the
// name of the loss, which the caller puts in front.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/layers/layer_spec.h"
#include "common/schema/schema.h"
#include "common/tensor/tensor.h"

namespace evergrad::config {

struct LossDescriptor {
  std::string name;
  bool built = true;
  // The loss compares classes, so that an example is right or wrong.
  bool has_classes = false;
  // The activation that makes probabilities of logits: the loss has the key `from_logits`, which
  // contradicts an output that ends in this activation. "": the loss has no such key.
  std::string activation = {};
  // One label for each row of the output, along its last axis; else one for each element.
  bool label_per_row = false;
  std::uint64_t classes_min = 0;  // the least size of the last axis
};

// In the order of messages and of the reference.
const std::vector<LossDescriptor>& Losses();
// How the losses that are built are read, written and explained.
const Variant<LossSpec>& LossVariant();

// Whether the loss takes an output of this shape that ends in this activation.
absl::Status CheckLoss(const LossSpec& spec, const tensor::Shape& output,
                       absl::string_view output_activation);
// How many labels of one example the loss wants for an output of this shape.
std::uint64_t LabelElements(const LossDescriptor& loss, const tensor::Shape& output);

}  // namespace evergrad::config

// The layer activation keeps the shape of its input. Softmax is computed over the last axis.
#include "common/base/status.h"
#include "common/layers/activations.h"
#include "common/layers/families.h"

namespace evergrad::config {
namespace {

absl::StatusOr<LayerShapes> InferActivation(const LayerSpec& spec, const LayerInputs& inputs) {
  EG_RETURN_IF_ERROR(CheckActivation(spec.activation));
  return LayerShapes{inputs.shapes[0]};
}

}  // namespace

std::vector<LayerDescriptor> ActivationLayers() {
  return {{.type = "activation",
           .article = "an",
           .keras = "Activation",
           .keys = {Required(ActivationKey("the function"))},
           .infer = &InferActivation,
           .example = {{"name", "act"}, {"activation", "relu"}, {"input", "norm2"}},
           .reference_position = 7}};
}

}  // namespace evergrad::config

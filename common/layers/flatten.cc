// The layer flatten gives one axis with all elements.
#include "common/layers/families.h"

namespace evergrad::config {
namespace {

absl::StatusOr<LayerShapes> InferFlatten(const LayerSpec&, const LayerInputs& inputs) {
  return LayerShapes{{inputs.shapes[0].elements()}};
}

}  // namespace

std::vector<LayerDescriptor> FlattenLayers() {
  return {{.type = "flatten",
           .article = "a",
           .keras = "Flatten",
           .is_view = true,
           .infer = &InferFlatten,
           .example = {{"name", "flat"}, {"input", "pool1"}},
           .reference_position = 4}};
}

}  // namespace evergrad::config

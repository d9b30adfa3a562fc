// The layer global_average_pooling2d reads images (height, width, channels) and gives (channels).
#include "common/base/status.h"
#include "common/layers/families.h"

namespace evergrad::config {
namespace {

absl::StatusOr<LayerShapes> InferGlobalAveragePooling2d(const LayerSpec& spec,
                                                        const LayerInputs& inputs) {
  EG_RETURN_IF_ERROR(CheckImage(spec, inputs.shapes[0]));
  return LayerShapes{{inputs.shapes[0][2]}};
}

}  // namespace

std::vector<LayerDescriptor> GlobalAveragePooling2dLayers() {
  return {{.type = "global_average_pooling2d",
           .article = "a",
           .keras = "GlobalAveragePooling2D",
           .keys_not_built = {"keepdims"},
           .infer = &InferGlobalAveragePooling2d,
           .example = {{"name", "pool2"}, {"input", "conv1"}}}};
}

}  // namespace evergrad::config

// The layer max_pooling2d reads images (height, width, channels) and keeps the channels.
#include "common/base/status.h"
#include "common/layers/families.h"
#include "common/layers/shape_rules.h"

namespace evergrad::config {
namespace {

absl::StatusOr<LayerShapes> InferMaxPooling2d(const LayerSpec& spec, const LayerInputs& inputs) {
  const tensor::Shape& input = inputs.shapes[0];
  EG_RETURN_IF_ERROR(CheckImage(spec, input));
  EG_ASSIGN_OR_RETURN(const Window window,
                      SlideWindow(spec, input, spec.pool_h, spec.pool_w, "pool_size", "pool"));
  EG_ASSIGN_OR_RETURN(
      tensor::Shape output,
      CheckedShape("its output", {static_cast<std::uint64_t>(window.h.out),
                                  static_cast<std::uint64_t>(window.w.out), input[2]}));
  return LayerShapes{std::move(output)};
}

// As in Keras, the strides default to the pool size.
void Complete(const Node& node, LayerSpec* spec) {
  if (node.Find("strides") == nullptr) spec->stride_h = spec->pool_h, spec->stride_w = spec->pool_w;
}

}  // namespace

std::vector<LayerDescriptor> MaxPooling2dLayers() {
  Key<LayerSpec> strides = StridesKey();
  strides.default_text = "the pool size";
  return {{.type = "max_pooling2d",
           .article = "a",
           .keras = "MaxPooling2D",
           .keys = {PairKey("pool_size", &LayerSpec::pool_h, &LayerSpec::pool_w,
                            "height and width of the window"),
                    std::move(strides), PaddingKey()},
           .infer = &InferMaxPooling2d,
           .example = {{"name", "pool1"}, {"strides", "[2, 2]"}, {"input", "norm1"}},
           .reference_position = 3,
           .complete = &Complete}};
}

}  // namespace evergrad::config

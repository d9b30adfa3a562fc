// The layer conv2d reads images (height, width, channels). The kernel has the shape (height, width,
// channels, filters).
#include "common/base/status.h"
#include "common/layers/activations.h"
#include "common/layers/families.h"
#include "common/layers/shape_rules.h"

namespace evergrad::config {
namespace {

absl::StatusOr<LayerShapes> InferConv2d(const LayerSpec& spec, const LayerInputs& inputs) {
  const tensor::Shape& input = inputs.shapes[0];
  EG_RETURN_IF_ERROR(CheckImage(spec, input));
  if (spec.filters < 1) return absl::InvalidArgumentError("filters must be at least 1: filters=0");
  EG_ASSIGN_OR_RETURN(const Window window, SlideWindow(spec, input, spec.kernel_h, spec.kernel_w,
                                                       "kernel_size", "kernel"));
  EG_RETURN_IF_ERROR(CheckActivation(spec.activation));
  EG_ASSIGN_OR_RETURN(
      tensor::Shape kernel,
      CheckedShape("its kernel", {spec.kernel_h, spec.kernel_w, input[2], spec.filters}));
  EG_ASSIGN_OR_RETURN(
      tensor::Shape output,
      CheckedShape("its output", {static_cast<std::uint64_t>(window.h.out),
                                  static_cast<std::uint64_t>(window.w.out), spec.filters}));
  const std::uint64_t positions = spec.kernel_h * spec.kernel_w;
  return LayerShapes{std::move(output), KernelAndBias(spec, std::move(kernel), positions * input[2],
                                                      positions * spec.filters, spec.filters)};
}

}  // namespace

std::vector<LayerDescriptor> Conv2dLayers() {
  return {
      {.type = "conv2d",
       .article = "a",
       .keras = "Conv2D",
       .keys = WithWeightKeys(
           {Required(Integer<LayerSpec>("filters", &LayerSpec::filters, 1, 1u << 16,
                                        "channels of the output")),
            Required(PairKey("kernel_size", &LayerSpec::kernel_h, &LayerSpec::kernel_w,
                             "height and width of the window")),
            StridesKey(), PaddingKey()}),
       .infer = &InferConv2d,
       .example = {{"name", "conv1"}, {"filters", "16"}, {"kernel_size", "3"}, {"input", "image"}},
       .reference_position = 1}};
}

}  // namespace evergrad::config

// The layer dropout keeps the shape of its input.
#include "absl/strings/str_cat.h"
#include "common/layers/families.h"

namespace evergrad::config {
namespace {

absl::StatusOr<LayerShapes> InferDropout(const LayerSpec& spec, const LayerInputs& inputs) {
  if (!(spec.rate >= 0 && spec.rate < 1))
    return absl::InvalidArgumentError(absl::StrCat("rate must be in [0, 1): rate=", spec.rate));
  return LayerShapes{inputs.shapes[0]};
}

}  // namespace

std::vector<LayerDescriptor> DropoutLayers() {
  return {
      {.type = "dropout",
       .article = "a",
       .keras = "Dropout",
       .keys = {Required(RealNumber<LayerSpec>("rate", &LayerSpec::rate, {0, 1, false, true},
                                               "share of the inputs that training sets to zero")),
                OptionalInteger<LayerSpec>("seed", &LayerSpec::seed, 0, kAny,
                                           "seed of the layer. If omitted, the seed is derived "
                                           "from the job's seed and the layer's name")},
       .infer = &InferDropout,
       .example = {{"name", "drop"}, {"rate", "0.2"}, {"input", "act"}},
       .reference_position = 8}};
}

}  // namespace evergrad::config

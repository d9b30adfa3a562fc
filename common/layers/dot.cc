// The layer dot reads two vectors of the same size and gives one number.
#include "absl/strings/str_cat.h"
#include "common/layers/families.h"
#include "common/layers/shape_rules.h"

namespace evergrad::config {
namespace {

absl::StatusOr<LayerShapes> InferDot(const LayerSpec& spec, const LayerInputs& inputs) {
  if (inputs.shapes[0].rank() != 1 || inputs.shapes[0] != inputs.shapes[1])
    return ShapeError(
        spec, absl::StrCat("needs two vectors of the same size, got ", ShapeList(inputs.shapes)));
  return LayerShapes{tensor::Shape{1}};
}

}  // namespace

std::vector<LayerDescriptor> DotLayers() {
  return {{.type = "dot",
           .article = "a",
           .keras = "Dot",
           .keys = {Flag<LayerSpec>("normalize", &LayerSpec::normalize,
                                    "whether both vectors are first divided by their lengths. The "
                                    "result is then the cosine of the angle between them")},
           .keys_not_built = {"axes"},
           .inputs = {2, 2},
           .infer = &InferDot,
           .example = {{"name", "score"}, {"input", "[user, item]"}}}};
}

}  // namespace evergrad::config

// Layers that combine inputs of the same shape element by element, and give that shape.
#include "absl/strings/str_cat.h"
#include "common/layers/families.h"
#include "common/layers/shape_rules.h"

namespace evergrad::config {
namespace {

absl::StatusOr<LayerShapes> InferElementwise(const LayerSpec& spec, const LayerInputs& inputs) {
  for (const tensor::Shape& input : inputs.shapes)
    if (input != inputs.shapes[0])
      return ShapeError(
          spec, absl::StrCat("needs inputs of the same shape, got ", ShapeList(inputs.shapes)));
  return LayerShapes{inputs.shapes[0]};
}

}  // namespace

std::vector<LayerDescriptor> ElementwiseLayers() {
  return {{.type = "add",
           .article = "an",
           .keras = "Add",
           .inputs = {2, InputCount::kAny},
           .infer = &InferElementwise,
           .example = {{"name", "sum"}, {"input", "[wide, deep]"}}},
          {.type = "multiply",
           .article = "a",
           .keras = "Multiply",
           .inputs = {2, InputCount::kAny},
           .infer = &InferElementwise,
           .example = {{"name", "product"}, {"input", "[user, item]"}}}};
}

}  // namespace evergrad::config

// The layer factorization_machine reads vectors of the same size, at least two per example, and
// gives one number.
#include "absl/strings/str_cat.h"
#include "common/layers/families.h"
#include "common/layers/shape_rules.h"

namespace evergrad::config {
namespace {

absl::StatusOr<LayerShapes> InferFactorizationMachine(const LayerSpec& spec,
                                                      const LayerInputs& inputs) {
  const tensor::Shape& first = inputs.shapes[0];
  std::uint64_t fields = 0;
  for (const tensor::Shape& input : inputs.shapes) {
    if ((input.rank() != 1 && input.rank() != 2) || input.dims().back() != first.dims().back())
      return ShapeError(spec,
                        absl::StrCat("needs vectors of the same size, as inputs (dimension) or "
                                     "(fields, dimension); got ",
                                     ShapeList(inputs.shapes)));
    fields += input.rank() == 1 ? 1 : input[0];
  }
  if (fields < 2)
    return ShapeError(spec, absl::StrCat("needs at least two vectors per example, got ",
                                         ShapeList(inputs.shapes)));
  return LayerShapes{tensor::Shape{1}};
}

}  // namespace

std::vector<LayerDescriptor> FactorizationMachineLayers() {
  return {{.type = "factorization_machine",
           .article = "a",
           .keras = "FactorizationMachine",
           .inputs = {1, InputCount::kAny},
           .infer = &InferFactorizationMachine,
           .example = {{"name", "fm"}, {"input", "[user, item]"}}}};
}

}  // namespace evergrad::config

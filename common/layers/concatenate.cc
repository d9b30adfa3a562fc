// The layer concatenate joins its inputs along the last axis; all other axes must agree.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layers/families.h"
#include "common/layers/shape_rules.h"

namespace evergrad::config {
namespace {

absl::StatusOr<LayerShapes> InferConcatenate(const LayerSpec& spec, const LayerInputs& inputs) {
  std::vector<std::uint64_t> dims = inputs.shapes[0].dims();
  for (const tensor::Shape& input : inputs.shapes) {
    if (input.rank() < 1)
      return ShapeError(
          spec, absl::StrCat("needs inputs of rank 1 or more, got ", ShapeList(inputs.shapes)));
    if (input.rank() != dims.size() ||
        !std::equal(dims.begin(), dims.end() - 1, input.dims().begin()))
      return ShapeError(spec, absl::StrCat("needs inputs that agree in all axes but the last, got ",
                                           ShapeList(inputs.shapes)));
  }
  dims.back() = 0;
  for (const tensor::Shape& input : inputs.shapes) dims.back() += input.dims().back();
  EG_ASSIGN_OR_RETURN(tensor::Shape output, CheckedShape("its output", std::move(dims)));
  return LayerShapes{std::move(output)};
}

}  // namespace

std::vector<LayerDescriptor> ConcatenateLayers() {
  return {{.type = "concatenate",
           .article = "a",
           .keras = "Concatenate",
           .keys_not_built = {"axis"},
           .inputs = {1, InputCount::kAny},
           .infer = &InferConcatenate,
           .example = {{"name", "features"}, {"input", "[user, item]"}}}};
}

}  // namespace evergrad::config

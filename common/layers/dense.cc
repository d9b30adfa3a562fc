// The layer dense works on the last axis, as in Keras: an input (28, 28, 3) gives (28, 28, units).
#include "common/base/status.h"
#include "common/layers/activations.h"
#include "common/layers/families.h"
#include "common/layers/shape_rules.h"

namespace evergrad::config {
namespace {

absl::StatusOr<LayerShapes> InferDense(const LayerSpec& spec, const LayerInputs& inputs) {
  const tensor::Shape& input = inputs.shapes[0];
  if (spec.units < 1) return absl::InvalidArgumentError("units must be at least 1: units=0");
  if (input.rank() < 1) return ShapeError(spec, "needs an input of rank 1 or more, got ()");
  EG_RETURN_IF_ERROR(CheckActivation(spec.activation));
  const std::uint64_t in = input.dims().back();
  EG_ASSIGN_OR_RETURN(tensor::Shape kernel, CheckedShape("its kernel", {in, spec.units}));
  std::vector<std::uint64_t> dims = input.dims();
  dims.back() = spec.units;
  EG_ASSIGN_OR_RETURN(tensor::Shape output, CheckedShape("its output", std::move(dims)));
  return LayerShapes{std::move(output),
                     KernelAndBias(spec, std::move(kernel), in, spec.units, spec.units)};
}

}  // namespace

std::vector<LayerDescriptor> DenseLayers() {
  return {{.type = "dense",
           .article = "a",
           .keras = "Dense",
           .keys = WithWeightKeys({Required(
               Integer<LayerSpec>("units", &LayerSpec::units, 1, 1u << 24, "size of the output"))}),
           .infer = &InferDense,
           .example = {{"name", "hidden"}, {"units", "64"}, {"input", "flat"}},
           .reference_position = 5}};
}

}  // namespace evergrad::config

#include "worker/layers/layer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/layers/activations.h"
#include "common/layers/layer_descriptor.h"
#include "common/layers/named.h"
#include "common/layers/shape_rules.h"

namespace evergrad::worker {

Layer::Layer(const LayerPlan& plan)
    : name_(plan.spec.name), type_(plan.keras), output_shape_(plan.output()) {
  for (const config::VariableSpec& v : plan.shapes.variables)
    variables_.push_back({absl::StrCat(name_, "/", v.suffix), v.shape, v.initializer.type,
                          v.initializer.value, v.initializer.stddev, v.fan_in, v.fan_out, v.l2,
                          v.momentum, v.of_products});
}

std::optional<std::uint64_t> Layer::StepKey(std::uint64_t) const { return std::nullopt; }
absl::Status Layer::Reserve(Backend&, std::int64_t) { return absl::OkStatus(); }
void Layer::Merge(const Pass&, const std::vector<AnyIn>&, AnyOut) { EG_CHECK(false); }
void Layer::Unmerge(const Pass&, const std::vector<AnyIn>&, AnyIn, AnyIn, std::size_t, AnyOut) {
  EG_CHECK(false);
}
void MergeLayer::Forward(const Pass&, const std::vector<AnyIn>&, AnyIn, AnyOut) { EG_CHECK(false); }
void MergeLayer::Backward(const Pass&, const std::vector<AnyIn>&, AnyIn, AnyIn, AnyOut, AnyOut,
                          const std::vector<Out>&) {
  EG_CHECK(false);
}

absl::Status ReserveState(Backend& backend, const Layer& layer, std::size_t bytes, Memory* memory) {
  if (bytes <= memory->bytes()) return absl::OkStatus();
  *memory = {};  // freed first, because the old and the new size may not fit together
  EG_ASSIGN_OR_RETURN(*memory, backend.Allocate(bytes, layer.name()));
  return absl::OkStatus();
}

absl::Status ErrorAt(const config::Location& where, absl::string_view text) {
  return UserError(absl::InvalidArgumentError(
      absl::StrCat(where.file.empty() ? "" : absl::StrCat(where.ToString(), ": "), text)));
}

absl::Status LayerError(const config::LayerSpec& spec, absl::string_view text) {
  return ErrorAt(spec.where, absl::StrCat("layer `", spec.name, "`: ", text));
}

Activation ActivationOf(const config::LayerSpec& spec) {
  const auto* const activation = config::FindBuilt(config::Activations(), spec.activation);
  EG_CHECK(activation != nullptr);
  return activation->kind;
}

absl::StatusOr<std::unique_ptr<Layer>> MakeLayer(const config::LayerSpec& spec,
                                                 const config::LayerInputs& inputs) {
  static_assert(config::kArrayElementsMax == static_cast<std::uint64_t>(kElementsMax));
  static const std::vector<LayerMaker> makers = [] {
    std::vector<LayerMaker> all;
#define EVERGRAD_LAYER_FAMILY(name) \
  for (const LayerMaker& maker : name##Makers()) all.push_back(maker);
#include "common/layers/layer_families.inc"
#undef EVERGRAD_LAYER_FAMILY
    return all;
  }();
  const auto shapes = config::InferLayer(spec, inputs);
  if (!shapes.ok()) return LayerError(spec, shapes.status().message());
  const auto maker = std::find_if(makers.begin(), makers.end(),
                                  [&](const LayerMaker& m) { return m.type == spec.type; });
  EG_CHECK(maker != makers.end());  // each descriptor of a family has a computation
  return maker->make({spec, inputs, *shapes, config::FindLayer(spec.type)->keras});
}

}  // namespace evergrad::worker

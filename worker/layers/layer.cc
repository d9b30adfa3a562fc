#include "worker/layers/layer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace evergrad::worker {

void Layer::AddVariable(absl::string_view suffix, tensor::Shape shape,
                        const config::InitializerSpec& initializer, std::uint64_t fan_in,
                        std::uint64_t fan_out, double l2) {
  variables_.push_back({absl::StrCat(name_, "/", suffix), std::move(shape), initializer.type,
                        initializer.value, initializer.stddev, fan_in, fan_out, l2, -1, false});
}

void Layer::AddKernel(tensor::Shape shape, const config::InitializerSpec& initializer,
                      std::uint64_t fan_in, std::uint64_t fan_out, double l2) {
  AddVariable("kernel", std::move(shape), initializer, fan_in, fan_out, l2);
  variables_.back().of_products = true;
}

void Layer::AddMovingAverage(absl::string_view suffix, std::uint64_t channels,
                             const config::InitializerSpec& initializer, double momentum) {
  AddVariable(suffix, {channels}, initializer, channels, channels, 0);
  variables_.back().momentum = momentum;
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
  *memory = {};  // first, or both sizes would be held
  EG_ASSIGN_OR_RETURN(*memory, backend.Allocate(bytes, layer.name()));
  return absl::OkStatus();
}

std::string ShapeList(const std::vector<tensor::Shape>& shapes) {
  return absl::StrJoin(shapes, ", ", [](std::string* out, const tensor::Shape& shape) {
    absl::StrAppend(out, shape.ToString());
  });
}

absl::Status LayerError(const config::LayerSpec& spec, absl::string_view text) {
  const config::Location& at = spec.where;
  const std::string place =
      at.file.empty() ? "" : absl::StrCat(at.file, ":", at.line, ":", at.column, ": ");
  return UserError(
      absl::InvalidArgumentError(absl::StrCat(place, "layer `", spec.name, "`: ", text)));
}

absl::StatusOr<Activation> ParseActivation(const config::LayerSpec& spec) {
  static constexpr std::pair<absl::string_view, Activation> kNames[] = {
      {"linear", Activation::kLinear},
      {"relu", Activation::kRelu},
      {"tanh", Activation::kTanh},
      {"sigmoid", Activation::kSigmoid},
      {"softmax", Activation::kSoftmax}};
  for (const auto& [name, activation] : kNames) {
    if (spec.activation == name) return activation;
  }
  return LayerError(spec, absl::StrCat("unknown activation `", spec.activation,
                                       "`; one of linear, relu, tanh, sigmoid, softmax"));
}

absl::StatusOr<tensor::Shape> CheckedShape(const config::LayerSpec& spec, absl::string_view what,
                                           std::vector<std::uint64_t> dims) {
  auto shape = tensor::Shape::Checked(std::move(dims));
  if (!shape.ok())
    return LayerError(spec, absl::StrCat(what, " cannot be: ", shape.status().message()));
  if (shape->elements() > static_cast<std::uint64_t>(kElementsMax)) {
    return LayerError(spec, absl::StrCat(what, " ", shape->ToString(), " has ", shape->elements(),
                                         " elements, more than ", kElementsMax));
  }
  return shape;
}

WindowAxis SlideWindow(std::int64_t in, std::int64_t window, std::int64_t stride, bool same) {
  if (!same) return {(in - window) / stride + 1, 0, 0};
  const std::int64_t out = (in + stride - 1) / stride;
  const std::int64_t padding = std::max<std::int64_t>(0, (out - 1) * stride + window - in);
  return {out, padding / 2, padding - padding / 2};
}

absl::StatusOr<bool> PaddingIsSame(const config::LayerSpec& spec) {
  if (spec.padding == "same") return true;
  if (spec.padding == "valid") return false;
  return LayerError(spec, absl::StrCat("unknown padding `", spec.padding, "`; one of valid, same"));
}

absl::StatusOr<std::unique_ptr<Layer>> MakeLayer(const config::LayerSpec& spec,
                                                 const std::vector<tensor::Shape>& inputs) {
  using Maker =
      absl::StatusOr<std::unique_ptr<Layer>> (*)(const config::LayerSpec&, const tensor::Shape&);
  using MergeMaker = absl::StatusOr<std::unique_ptr<Layer>> (*)(const config::LayerSpec&,
                                                                const std::vector<tensor::Shape>&);
  static constexpr std::pair<absl::string_view, Maker> kMakers[] = {
      {"dense", &MakeDense},
      {"conv2d", &MakeConv2d},
      {"max_pooling2d", &MakeMaxPooling2d},
      {"global_average_pooling2d", &MakeGlobalAveragePooling2d},
      {"batch_normalization", &MakeBatchNormalization},
      {"layer_normalization", &MakeLayerNormalization},
      {"flatten", &MakeFlatten},
      {"activation", &MakeActivation},
      {"dropout", &MakeDropout},
  };
  static constexpr std::pair<absl::string_view, MergeMaker> kMergeMakers[] = {
      {"concatenate", &MakeConcatenate},
      {"add", &MakeAdd},
      {"dot", &MakeDot},
      {"factorization_machine", &MakeFactorizationMachine}};
  for (const auto& [type, make] : kMakers) {
    if (spec.type != type) continue;
    if (inputs.size() != 1)
      return LayerError(spec, absl::StrCat(spec.type, " takes one input, got ", inputs.size(), ": ",
                                           absl::StrJoin(spec.inputs, ", ")));
    return make(spec, inputs[0]);
  }
  for (const auto& [type, make] : kMergeMakers) {
    if (spec.type == type) return make(spec, inputs);
  }
  return LayerError(
      spec,
      absl::StrCat(
          "unknown type `", spec.type,
          "`; one of dense, conv2d, max_pooling2d, global_average_pooling2d, batch_normalization, "
          "layer_normalization, flatten, activation, dropout, embedding, concatenate, add, dot, "
          "factorization_machine"));
}

}  // namespace evergrad::worker

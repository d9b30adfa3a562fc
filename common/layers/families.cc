#include "common/layers/families.h"

#include <utility>

#include "common/layers/activations.h"
#include "common/layers/initializers.h"
#include "common/layers/named.h"

namespace evergrad::config {

Key<LayerSpec> ActivationKey(std::string help) {
  return Choice<LayerSpec>("activation", &LayerSpec::activation, NamesOf(Activations(), true),
                           NamesOf(Activations(), false), "", std::move(help));
}

Key<LayerSpec> PaddingKey() {
  return Choice<LayerSpec>("padding", &LayerSpec::padding, {"valid", "same"}, {"causal"}, "",
                           "padding of the input. With `same`, the output has ceil(input size / "
                           "stride) positions on each axis, as in TensorFlow");
}

Key<LayerSpec> PairKey(const std::string& name, std::uint64_t LayerSpec::*h,
                       std::uint64_t LayerSpec::*w, std::string help) {
  constexpr std::uint64_t kMax = 1024;
  return {name,
          absl::StrCat(IntegerType(1, kMax), ", or [height, width]"),
          std::move(help),
          false,
          [=](Reader& r, const Node& n, LayerSpec* t) {
            if (n.kind != Node::Kind::kSequence) {
              if (const auto v = r.Unsigned(n, name, 1, kMax)) t->*h = t->*w = *v;
              return;
            }
            if (n.items.size() != 2) {
              r.Report(n.where(),
                       absl::StrCat("`", name,
                                    "`: expected one integer or [height, width], got a list of ",
                                    n.items.size()));
              return;
            }
            const auto a = r.Unsigned(n.items[0], name, 1, kMax),
                       b = r.Unsigned(n.items[1], name, 1, kMax);
            if (a && b) t->*h = *a, t->*w = *b;
          },
          [=](const LayerSpec& t) {
            if (t.*h == 0) return std::optional<Node>();
            return std::optional<Node>(
                MakeList({MakePlain(absl::StrCat(t.*h)), MakePlain(absl::StrCat(t.*w))}));
          }};
}

Key<LayerSpec> StridesKey() {
  return PairKey("strides", &LayerSpec::stride_h, &LayerSpec::stride_w,
                 "distance between two successive positions of the window");
}

std::vector<Key<LayerSpec>> WithWeightKeys(std::vector<Key<LayerSpec>> own) {
  const Key<LayerSpec> keys[] = {
      ActivationKey("function applied to the output"),
      Flag<LayerSpec>("use_bias", &LayerSpec::use_bias, "whether a bias is added"),
      InitializerKey<LayerSpec>("kernel_initializer", &LayerSpec::kernel_initializer,
                                "initial values of the kernel, by Keras' formulas. The values "
                                "depend only on the job's seed and the variable's name"),
      InitializerKey<LayerSpec>("bias_initializer", &LayerSpec::bias_initializer,
                                "initial values of the bias"),
      RegularizerKey<LayerSpec>(
          "kernel_regularizer", &LayerSpec::kernel_l2,
          "l2 times the sum of the squared elements of the kernel is added to the loss"),
      RegularizerKey<LayerSpec>(
          "bias_regularizer", &LayerSpec::bias_l2,
          "l2 times the sum of the squared elements of the bias is added to the loss")};
  own.insert(own.end(), std::begin(keys), std::end(keys));
  return own;
}

std::vector<VariableSpec> KernelAndBias(const LayerSpec& spec, tensor::Shape kernel,
                                        std::uint64_t fan_in, std::uint64_t fan_out,
                                        std::uint64_t outputs) {
  std::vector<VariableSpec> variables = {{.suffix = "kernel",
                                          .shape = std::move(kernel),
                                          .initializer = spec.kernel_initializer,
                                          .fan_in = fan_in,
                                          .fan_out = fan_out,
                                          .l2 = spec.kernel_l2,
                                          .of_products = true}};
  if (spec.use_bias)
    variables.push_back({.suffix = "bias",
                         .shape = {outputs},
                         .initializer = spec.bias_initializer,
                         .fan_in = outputs,
                         .fan_out = outputs,
                         .l2 = spec.bias_l2});
  return variables;
}

absl::Status CheckImage(const LayerSpec& spec, const tensor::Shape& input) {
  if (input.rank() == 3) return absl::OkStatus();
  return ShapeError(
      spec, absl::StrCat("needs an input (height, width, channels), got ", input.ToString()));
}

absl::Status ShapeError(const LayerSpec& spec, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(spec.type, " ", text));
}

}  // namespace evergrad::config

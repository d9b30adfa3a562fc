// The layers batch_normalization and layer_normalization, over the last axis, as in Keras.
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layers/families.h"
#include "common/layers/initializers.h"

namespace evergrad::config {
namespace {

std::vector<Key<LayerSpec>> WithNormalizationKeys(std::vector<Key<LayerSpec>> own) {
  const Key<LayerSpec> keys[] = {
      RealNumber<LayerSpec>("epsilon", &LayerSpec::epsilon, {0, 1, true, false},
                            "number added to the variance"),
      Flag<LayerSpec>("center", &LayerSpec::center,
                      "whether a learned offset, beta, is added to the output"),
      Flag<LayerSpec>("scale", &LayerSpec::scale,
                      "whether the output is multiplied by a learned factor, gamma"),
      InitializerKey<LayerSpec>("beta_initializer", &LayerSpec::beta_initializer,
                                "initial values of beta"),
      InitializerKey<LayerSpec>("gamma_initializer", &LayerSpec::gamma_initializer,
                                "initial values of gamma"),
      RegularizerKey<LayerSpec>(
          "beta_regularizer", &LayerSpec::beta_l2,
          "l2 times the sum of the squared elements of beta is added to the loss"),
      RegularizerKey<LayerSpec>(
          "gamma_regularizer", &LayerSpec::gamma_l2,
          "l2 times the sum of the squared elements of gamma is added to the loss")};
  own.insert(own.end(), std::begin(keys), std::end(keys));
  return own;
}

// Returns a variable with one number for each channel; channels are the last axis.
VariableSpec OfChannels(std::string suffix, std::uint64_t channels,
                        const InitializerSpec& initializer) {
  return {.suffix = std::move(suffix),
          .shape = {channels},
          .initializer = initializer,
          .fan_in = channels,
          .fan_out = channels};
}

// Infers gamma and beta, if they are learned.
absl::StatusOr<LayerShapes> InferLearned(const LayerSpec& spec, const LayerInputs& inputs) {
  const tensor::Shape& input = inputs.shapes[0];
  if (input.rank() < 1) return ShapeError(spec, "needs an input of rank 1 or more, got ()");
  if (!(spec.epsilon > 0))
    return absl::InvalidArgumentError(
        absl::StrCat("epsilon must be above 0: epsilon=", spec.epsilon));
  const std::uint64_t channels = input.dims().back();
  LayerShapes shapes{input};
  if (spec.scale) {
    shapes.variables.push_back(OfChannels("gamma", channels, spec.gamma_initializer));
    shapes.variables.back().l2 = spec.gamma_l2;
  }
  if (spec.center) {
    shapes.variables.push_back(OfChannels("beta", channels, spec.beta_initializer));
    shapes.variables.back().l2 = spec.beta_l2;
  }
  return shapes;
}

absl::StatusOr<LayerShapes> InferBatchNormalization(const LayerSpec& spec,
                                                    const LayerInputs& inputs) {
  EG_ASSIGN_OR_RETURN(LayerShapes shapes, InferLearned(spec, inputs));
  if (!(spec.momentum >= 0 && spec.momentum < 1))
    return absl::InvalidArgumentError(
        absl::StrCat("momentum must be in [0, 1): momentum=", spec.momentum));
  const std::uint64_t channels = shapes.output.dims().back();
  for (VariableSpec moving :
       {OfChannels("moving_mean", channels, spec.moving_mean_initializer),
        OfChannels("moving_variance", channels, spec.moving_variance_initializer)}) {
    moving.momentum = spec.momentum;
    shapes.variables.push_back(std::move(moving));
  }
  return shapes;
}

}  // namespace

std::vector<LayerDescriptor> NormalizationLayers() {
  return {
      {.type = "batch_normalization",
       .article = "a",
       .keras = "BatchNormalization",
       .keys = WithNormalizationKeys(
           {RealNumber<LayerSpec>("momentum", &LayerSpec::momentum, {0, 1, false, true},
                                  "momentum of the moving mean and variance, which evaluation "
                                  "uses. Each step moves the moving mean and variance towards the "
                                  "mean and variance of the batch by the fraction 1 - momentum"),
            InitializerKey<LayerSpec>("moving_mean_initializer",
                                      &LayerSpec::moving_mean_initializer,
                                      "initial values of the moving mean"),
            InitializerKey<LayerSpec>("moving_variance_initializer",
                                      &LayerSpec::moving_variance_initializer,
                                      "initial values of the moving variance")}),
       .keys_not_built = {"axis"},
       .infer = &InferBatchNormalization,
       .example = {{"name", "norm1"}, {"input", "conv1"}},
       .reference_position = 2},
      {.type = "layer_normalization",
       .article = "a",
       .keras = "LayerNormalization",
       .keys = WithNormalizationKeys({}),
       .keys_not_built = {"axis"},
       .infer = &InferLearned,
       .example = {{"name", "norm2"}, {"input", "hidden"}},
       .reference_position = 6}};
}

}  // namespace evergrad::config

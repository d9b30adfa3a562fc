// The arguments of a layer's shape rule, and its result. Plain values.
//
// Shapes describe one example; a batch has its size as an additional first dimension.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/layers/layer_spec.h"
#include "common/tensor/tensor.h"

namespace evergrad::config {

struct LayerInputs {
  std::vector<tensor::Shape> shapes;     // shapes of the inputs, in the order of LayerSpec::inputs
  std::optional<tensor::Shape> weights;  // embedding: shape of the input with the weights
  std::uint32_t dimension = 0;           // embedding: row size of the table
};

// A variable of a layer. The full name of the variable is the layer's name, `/` and the suffix, as
// in Keras.
struct VariableSpec {
  std::string suffix;
  tensor::Shape shape;
  InitializerSpec initializer;
  std::uint64_t fan_in = 0, fan_out = 0;
  double l2 = 0;  // l2 times the sum of the variable's squares is added to the loss
  // If in [0, 1), the variable is a moving average: each step moves it towards the measured value
  // by the fraction 1 - momentum of the difference. A negative number means that the variable is a
  // weight.
  double momentum = -1;
  bool of_products = false;  // true for a kernel, which mixed precision reads in 16 bits
};

struct LayerShapes {
  tensor::Shape output;
  std::vector<VariableSpec> variables = {};
};

// Infers the shapes of a layer from its inputs. Returns InvalidArgument for an unknown type, a
// wrong number of inputs, and shapes or values that do not match. The caller prepends the place and
// the layer's name.
absl::StatusOr<LayerShapes> InferLayer(const LayerSpec& spec, const LayerInputs& inputs);

}  // namespace evergrad::config

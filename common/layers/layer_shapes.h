// The arguments of a layer's shape rule, and its result. Plain values.
//
// Shapes are of one example; a batch puts its size in front.
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
  std::vector<tensor::Shape> shapes;     // of its inputs, in the order of LayerSpec::inputs
  std::optional<tensor::Shape> weights;  // embedding: of the input that holds the weights
  std::uint32_t dimension = 0;           // embedding: of its table
};

// A variable of a layer; the layer's name and `/` stand in front of the suffix, as in Keras.
struct VariableSpec {
  std::string suffix;
  tensor::Shape shape;
  InitializerSpec initializer;
  std::uint64_t fan_in = 0, fan_out = 0;
  double l2 = 0;  // l2 times the sum of the variable's squares is added to the loss
  // In [0, 1): the variable is a moving average, which each step moves by 1 - momentum of the way
  // to what the step measured. Below 0: a weight.
  double momentum = -1;
  bool of_products = false;  // a kernel, which mixed precision reads in 16 bits
};

struct LayerShapes {
  tensor::Shape output;
  std::vector<VariableSpec> variables = {};
};

// The shapes of a layer for inputs that fit. InvalidArgument without the place and the layer's
// name, which the caller puts in front: an unknown type, a wrong number of inputs, shapes or
// values that do not fit.
absl::StatusOr<LayerShapes> InferLayer(const LayerSpec& spec, const LayerInputs& inputs);

}  // namespace evergrad::config

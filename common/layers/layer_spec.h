// The typed values of a layer, an initializer and a loss in a job file.
//
// Plain values without checks: the tables of this room read the values from YAML, and the shape
// rules (layer_descriptor.h, losses.h) check the values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/schema/location.h"

namespace evergrad::config {

struct InitializerSpec {
  std::string type;      // one of Initializers(), initializers.h
  double value = 0;      // constant
  double stddev = 0.05;  // truncated_normal
  friend bool operator==(const InitializerSpec&, const InitializerSpec&) = default;
};

// One struct has the members of all layer types. A layer uses only the members for which its type
// has keys. The comments above the members name these types.
struct LayerSpec {
  std::string name, type;
  // The names of the layers or model inputs that the layer reads. If the key is missing, parsing
  // fills in the layer above.
  std::vector<std::string> inputs;
  std::string dtype;  // "float32", or "" if the layer follows training.precision
  // dense
  std::uint64_t units = 0;
  bool use_bias = true;
  // conv2d
  std::uint64_t filters = 0;
  std::uint64_t kernel_h = 0, kernel_w = 0, stride_h = 1, stride_w = 1;
  std::string padding = "valid";  // valid | same
  // max_pooling2d; its strides default to the pool size
  std::uint64_t pool_h = 2, pool_w = 2;
  // dense, conv2d and activation
  std::string activation = "linear";  // one of Activations(), activations.h
  // dropout
  double rate = 0;
  std::optional<std::uint64_t> seed;
  // embedding
  std::string table;              // the name of a table in ModelSpec::tables
  std::string combiner = "none";  // none | sum | mean | sqrtn
  std::string weights;            // the name of a model input; with "" every id has the weight 1
  // dot
  bool normalize = false;
  // batch_normalization, layer_normalization
  double epsilon = 1e-3;
  bool center = true, scale = true;  // whether beta and gamma are learned
  InitializerSpec gamma_initializer{"ones"}, beta_initializer{"zeros"};
  double gamma_l2 = 0, beta_l2 = 0;
  // batch_normalization
  double momentum = 0.99;  // momentum of the moving mean and variance
  InitializerSpec moving_mean_initializer{"zeros"}, moving_variance_initializer{"ones"};
  // dense, conv2d. The regularizers add l2 times the sum of squares to the loss.
  InitializerSpec kernel_initializer{"glorot_uniform"}, bias_initializer{"zeros"};
  double kernel_l2 = 0, bias_l2 = 0;
  Location where;
  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

struct LossSpec {
  std::string type;  // one of Losses(), losses.h
  bool from_logits = false;
  std::string output, labels;  // the name of a layer, the name of a field
  Location where;
  friend bool operator==(const LossSpec&, const LossSpec&) = default;
};

}  // namespace evergrad::config

// A second, simple implementation of a model. It has only the forward pass, in float64, with one
// loop for each formula, written directly from the definitions. The tests compute central
// differences with it, and compare them with the float32 gradients of the backend.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/config/job_spec.h"
#include "worker/graph/graph.h"

namespace evergrad::worker::test {

struct ReferenceBatch {
  std::int64_t size = 0;
  std::vector<std::vector<double>> inputs;  // including inputs of ids
  std::vector<double> labels;
  // The rows of each embedding table, by table and id.
  std::map<std::string, std::map<std::int64_t, std::vector<double>>> tables;
};
struct ReferenceResult {
  double loss_sum = 0;
  std::int64_t correct = 0;
  // The values that a training step would write into the moving averages, by variable.
  std::map<std::string, std::vector<double>> moving;
  // The shape of one example, by the name of the input or layer.
  std::map<std::string, std::vector<std::uint64_t>> shapes;
};

// Computes the model. The weights are in the order of the plan. Dropout draws masks only if
// `training`.
ReferenceResult ReferenceForward(const config::ModelSpec& model,
                                 const std::vector<std::vector<double>>& weights,
                                 const ReferenceBatch& batch, bool training,
                                 std::uint64_t dropout_key);

// One of the test models. Together they have every layer type, activation and loss.
struct GradientCase {
  std::string name;
  config::ModelSpec model;
  std::int64_t classes = 0;  // labels are 0 to classes-1; 0: the targets are real numbers in (0, 1)
};

std::vector<GradientCase> GradientCases();

// These functions make specs of layers. Settings that are not parameters have the defaults of the
// parser.
config::LayerSpec DenseSpec(const std::string& name, const std::string& input, std::uint64_t units,
                            const std::string& activation = "linear");
config::LayerSpec Conv2dSpec(const std::string& name, const std::string& input,
                             std::uint64_t filters, std::uint64_t kernel_h, std::uint64_t kernel_w,
                             std::uint64_t stride_h = 1, std::uint64_t stride_w = 1,
                             const std::string& padding = "valid",
                             const std::string& activation = "linear");
config::LayerSpec MaxPooling2dSpec(const std::string& name, const std::string& input,
                                   std::uint64_t pool_h, std::uint64_t pool_w,
                                   std::uint64_t stride_h, std::uint64_t stride_w,
                                   const std::string& padding = "valid");
config::LayerSpec FlattenSpec(const std::string& name, const std::string& input);
config::LayerSpec ActivationSpec(const std::string& name, const std::string& input,
                                 const std::string& activation);
config::LayerSpec DropoutSpec(const std::string& name, const std::string& input, double rate);
config::LossSpec LossOf(const std::string& type, const std::string& output,
                        bool from_logits = false);

// Makes the spec of a batch_normalization, layer_normalization or global_average_pooling2d.
config::LayerSpec PlainSpec(const std::string& name, const std::string& type,
                            const std::string& input);
config::LayerSpec MergeSpec(const std::string& name, const std::string& type,
                            std::vector<std::string> inputs);
config::LayerSpec EmbeddingSpec(const std::string& name, const std::string& table,
                                std::vector<std::string> inputs,
                                const std::string& combiner = "none",
                                const std::string& weights = "");
config::TableSpec TableOf(const std::string& name, std::uint32_t dimension, double l2 = 0);

// The quickstart's model over (28, 28, 1): dense 256 relu, dense 128 relu, dense 10 for the logits.
config::ModelSpec MlpModel();
// A small CNN over (28, 28, 1): conv 8 relu, pool, conv 16 relu, pool, dense 32 relu, dense 10 for
// the logits.
config::ModelSpec SmallCnnModel();

}  // namespace evergrad::worker::test

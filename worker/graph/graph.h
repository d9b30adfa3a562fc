// A model as a DAG of layers: shapes are inferred and checked at construction, then forward, loss and backward over one batch.
//
// Weights live outside: the caller hands in one span per variable (as pulled), and receives one gradient span per variable.
// Not thread-safe; one graph per compute thread. A pure function of (weights, batch, dropout key).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "common/tensor/tensor.h"
#include "worker/backend/backend.h"

namespace evergrad::worker {

// In the order of the plan: layer order, kernel before bias. Names are Keras': "dense/kernel".
struct Variable {
  std::string name;
  tensor::Shape shape;
  std::string initializer;
  std::uint64_t fan_in = 0, fan_out = 0;
};

struct Batch {
  std::int64_t size = 0;
  std::vector<std::span<const float>> inputs;   // one per model input, [size, …] row-major
  std::span<const float> labels;                // [size] class index or [size, …] targets, as float
};

struct StepResult {
  double loss_sum = 0;        // sum over examples of the loss
  std::int64_t correct = 0;   // accuracy's numerator
  bool finite = true;         // false: the loss or a gradient is NaN or Inf
};

class Graph {
 public:
  // User errors (UserError) name the layer, the shapes and what was expected.
  static absl::StatusOr<std::unique_ptr<Graph>> Build(const config::ModelSpec& model, Backend* backend);  // backend outlives it
  virtual ~Graph() = default;

  virtual const std::vector<Variable>& variables() const = 0;
  virtual std::string Summary() const = 0;     // a table for people: layer, output shape, parameters
  virtual std::uint64_t label_elements() const = 0;  // per example

  // Mean loss over the batch is differentiated. gradients[i] is overwritten. `dropout_key` is a function of (seed, c, u).
  virtual absl::StatusOr<StepResult> TrainStep(const std::vector<std::span<const float>>& weights, const Batch& batch, std::uint64_t dropout_key,
                                               const std::vector<std::span<float>>& gradients) = 0;
  // Forward only, no dropout.
  virtual absl::StatusOr<StepResult> Evaluate(const std::vector<std::span<const float>>& weights, const Batch& batch) = 0;
};

}  // namespace evergrad::worker

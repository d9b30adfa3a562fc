// A model as a DAG of layers: shapes are inferred and checked at construction, then forward, loss and backward over one batch.
//
// Weights live outside: the caller hands in one span per variable (as pulled), and receives one gradient span per variable.
// Not thread-safe; one graph per compute thread. A pure function of (weights, batch, dropout key). Buffers are kept across
// steps and grow with the largest batch seen; batches may differ in size (the last one of an epoch is short).
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
#include "worker/layers/layer.h"

namespace evergrad::worker {

struct Batch {
  std::int64_t size = 0;
  std::vector<std::span<const float>> inputs;  // one per model input, in the spec's order, [size, …] row-major
  std::span<const float> labels;               // [size, label_elements()]: class index or targets, as float
};

struct StepResult {
  double loss_sum = 0;       // sum over examples of the loss
  std::int64_t correct = 0;  // accuracy's numerator: examples; 0 unless the model asks for the metric
  bool finite = true;        // false: the loss or a gradient is NaN or Inf
};

class Graph {
 public:
  // A layer may name layers above it and model inputs. Every layer must reach a loss and every input must be used. Several
  // losses are added; they share the labels. Metrics are the first loss's.
  // User errors (UserError) name the layer, the shapes and what was expected.
  static absl::StatusOr<std::unique_ptr<Graph>> Build(const config::ModelSpec& model, Backend* backend);  // backend outlives it
  virtual ~Graph() = default;

  // In the order of the plan: layer order, kernel before bias. The caller's weights and gradients follow it.
  virtual const std::vector<Variable>& variables() const = 0;
  virtual std::string Summary() const = 0;           // a table for people: layer, output shape, parameters
  virtual std::uint64_t label_elements() const = 0;  // per example

  // UserError: a label out of range (naming value and classes), a batch too large for the model. InvalidArgument: spans that do
  // not fit. ResourceExhausted: no memory. A value that is not finite is no error here: StepResult says it.
  // Mean loss over the batch is differentiated. gradients[i] is overwritten. `dropout_key` is a function of (seed, c, u).
  virtual absl::StatusOr<StepResult> TrainStep(const std::vector<std::span<const float>>& weights, const Batch& batch, std::uint64_t dropout_key,
                                               const std::vector<std::span<float>>& gradients) = 0;
  // Forward only, no dropout.
  virtual absl::StatusOr<StepResult> Evaluate(const std::vector<std::span<const float>>& weights, const Batch& batch) = 0;
};

}  // namespace evergrad::worker

// A model as a DAG of layers. Shapes are inferred and checked at construction; then it computes
// forward, loss and backward over one batch.
//
// The caller holds the weights: it passes one span per variable, and receives one gradient span per
// variable. For an embedding table it passes the rows that the batch reads, which Lookup
// determines, and receives a gradient for the same rows:
//
//   batch ──Lookup──▶ unique ids ──pull──▶ rows [ids, dimension] ──TrainStep──▶ row gradients
//            │                                                         [ids, dimension] ──push──▶
//            └──▶ position: the row of each id of the batch
//
// A step reads and writes the backend's memory (worker/backend/backend.h). The graph does not
// access it; it gets the results of a step from Backend::Finish.
//
// Weights and rows may be passed, and gradients requested, as 16 bits, their type on the wire. The
// step widens them first, computes in float32, and narrows them last.
//
// Not thread-safe; one graph per compute thread. A pure function of (weights, batch, dropout key).
// Buffers are kept across steps and grow with the largest batch; batches may differ in size (the
// last one of an epoch is short).
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
#include "worker/graph/metrics.h"
#include "worker/layers/layer.h"
#include "worker/layers/unique_ids.h"

namespace evergrad::worker {

// A model input of a batch, in the type stated by Graph::inputs(); the other span is empty.
struct Values {
  std::span<const float> floats;
  std::span<const std::int64_t> ids;
  Values() = default;
  Values(std::span<const float> f) : floats(f) {}         // NOLINT(google-explicit-constructor)
  Values(std::span<const std::int64_t> i) : ids(i) {}     // NOLINT(google-explicit-constructor)
  Values(const std::vector<float>& f) : floats(f) {}      // NOLINT(google-explicit-constructor)
  Values(const std::vector<std::int64_t>& i) : ids(i) {}  // NOLINT(google-explicit-constructor)
};
struct Batch {
  std::int64_t size = 0;
  std::vector<Values> inputs;     // one per model input, in the spec's order, [size, …] row-major
  std::span<const float> labels;  // [size, label_elements()]: class index or targets, as float
};

// A model input: float32, or ids if embedding layers read it.
struct GraphInput {
  std::string name;
  tensor::DType dtype = tensor::DType::kFloat32;
  tensor::Shape shape;
};

// For one table: the ids that a batch reads, without duplicates, in order of their first
// appearance.
struct TableRows {
  std::vector<std::int64_t> ids;
  // For each id of the batch (embedding layers in listed order, then their inputs, examples,
  // elements): its index in `ids`; kAbsent for a negative id.
  std::vector<std::uint32_t> position;
};

// The rows of all tables for a step. The spans may be any memory that lives as long as the call.
struct Rows {
  const std::vector<TableRows>* lookup = nullptr;  // Lookup's result for this batch; one per table
  // One per table, [ids, dimension], in the order of `ids`. There may be more rows behind them,
  // which must be zeros: only the table's regularizer reads them, and their gradients are zeros.
  std::vector<AnyIn> values;
  // One per table: the lookup's positions, in the backend's memory. Empty: the lookup's own are
  // used.
  std::vector<std::span<const std::uint32_t>> positions = {};
};

// Synchronization of a step with copies: one event per variable, nullptr for none.
struct StepEvents {
  std::vector<Event*> there;  // the step waits for it before it reads the variable
  std::vector<Event*> made;   // the step records it when the variable's gradient is complete
};

struct StepResult {
  double loss_sum = 0;  // sum of the loss over examples, including the regularizers' terms
  std::vector<MetricSum> metrics;  // in the order of Graph::metrics()
  bool finite = true;              // false: the loss or a gradient is NaN or Inf
  // The first variable and the first table with a gradient that exceeds the range of the requested
  // 16 bits, or is not finite; -1: none.
  int overflowed = -1, rows_overflowed = -1;
};

class Graph {
 public:
  // A layer may read layers above it and model inputs. Every layer must reach a loss; every input
  // and every table must be used. Several losses are added; they share the labels. Metrics belong
  // to the first loss. User errors (UserError) name the layer, the shapes and the expectation.
  //
  // In mixed precision the values between layers, their gradients and the weights read by products
  // have 16 bits; weights, their gradients and the inputs of losses are float32, and so are layers
  // that request it (Layer::computes). `backend` must support the precision (CheckPrecision) and
  // outlives the graph.
  static absl::StatusOr<std::unique_ptr<Graph>> Build(const config::ModelSpec& model,
                                                      Backend* backend,
                                                      Precision precision = Precision::kFloat32);
  virtual ~Graph() = default;

  // In the order of the plan: layer order, kernel before bias. The caller's weights and gradients
  // have this order.
  virtual const std::vector<Variable>& variables() const = 0;
  virtual const std::vector<GraphInput>& inputs() const = 0;  // in the spec's order
  // In the order of the spec; TableRows, row values and row gradients have this order. A table that
  // no layer reads is a user error.
  virtual const std::vector<config::TableSpec>& tables() const = 0;
  virtual std::string Summary() const = 0;  // a table for people: layer, output shape, parameters
  virtual std::uint64_t label_elements() const = 0;        // per example
  virtual const std::vector<Metric>& metrics() const = 0;  // in the spec's order

  // Determines the rows that the batch reads, one entry per table (`rows` is resized, and its
  // memory reused). Does not change the graph: it may run for the next batch, on another thread
  // with its own scratch, during the computation of the current one. InvalidArgument for spans of
  // wrong size.
  virtual absl::Status Lookup(const Batch& batch, UniqueIds* scratch,
                              std::vector<TableRows>* rows) const = 0;
  absl::StatusOr<std::vector<TableRows>> Lookup(const Batch& batch) const;

  // Multiplies the gradients that flow from the losses by `scale`, from the next step on, so that
  // 16 bits can represent small ones; gradients of weights are divided by it again. A power of two,
  // 1 by default. Overflows are not finite (StepResult).
  virtual void SetLossScale(float scale) = 0;

  // A step in two parts, so that copies can be queued in between: Queue… queues all of it in the
  // backend, FinishStep waits and returns the result. After an error of Queue… there is nothing to
  // finish. The spans must live until FinishStep has returned; only the parts of `batch` that are
  // not ids are read.
  //
  // UserError for a label out of range (naming value and classes), or a batch too large for the
  // model. InvalidArgument for spans of wrong size. ResourceExhausted if out of memory. A
  // non-finite value is no error here; StepResult reports it. The mean loss over the batch is
  // differentiated. gradients[i] and row_gradients[t], which has as many rows as rows.values[t],
  // are overwritten; the gradients of an id that the batch reads several times are summed in the
  // order of the batch. `dropout_key` is a function of (seed, c, u).
  virtual absl::Status QueueTrainStep(const std::vector<AnyIn>& weights, const Rows& rows,
                                      const Batch& batch, std::uint64_t dropout_key,
                                      const std::vector<AnyOut>& gradients,
                                      const std::vector<AnyOut>& row_gradients,
                                      const StepEvents& events) = 0;
  // Forward only, without dropout.
  virtual absl::Status QueueEvaluate(const std::vector<AnyIn>& weights, const Rows& rows,
                                     const Batch& batch, const StepEvents& events) = 0;
  virtual absl::StatusOr<StepResult> FinishStep() = 0;

  // The error for a step of that many examples if the backend was out of memory: ResourceExhausted
  // with the number of examples that may fit. In addition to the graph's own memory, the caller
  // states the memory that it holds for the batch, needs per example, and still needs for any
  // number.
  struct CallersMemory {
    std::uint64_t held = 0, per_example = 0, still_wanted = 0;
  };
  virtual absl::Status NoMemory(const absl::Status& cause, std::int64_t examples,
                                bool with_gradients, const CallersMemory& callers) const = 0;

  // Both parts at once, for a model without tables.
  absl::StatusOr<StepResult> TrainStep(const std::vector<AnyIn>& weights, const Rows& rows,
                                       const Batch& batch, std::uint64_t dropout_key,
                                       const std::vector<AnyOut>& gradients,
                                       const std::vector<AnyOut>& row_gradients);
  absl::StatusOr<StepResult> Evaluate(const std::vector<AnyIn>& weights, const Rows& rows,
                                      const Batch& batch);
  absl::StatusOr<StepResult> TrainStep(const std::vector<AnyIn>& weights, const Batch& batch,
                                       std::uint64_t dropout_key,
                                       const std::vector<AnyOut>& gradients) {
    return TrainStep(weights, {}, batch, dropout_key, gradients, {});
  }
  absl::StatusOr<StepResult> Evaluate(const std::vector<AnyIn>& weights, const Batch& batch) {
    return Evaluate(weights, {}, batch);
  }
};

}  // namespace evergrad::worker

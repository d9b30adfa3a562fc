// A model as a DAG of layers. Build infers and checks the shapes. A step computes the forward pass,
// the loss and the backward pass over one batch.
//
// The caller holds the weights. The caller passes one span per variable, and receives one gradient
// span per variable. For an embedding table the caller passes the rows that the batch reads, and
// receives a gradient for the same rows. Lookup determines these rows:
//
//   batch ──Lookup──▶ unique ids ──pull──▶ rows [ids, dimension] ──TrainStep──▶ row gradients
//            │                                                         [ids, dimension] ──push──▶
//            └──▶ position: the row of each id of the batch
//
// A step reads and writes the backend's memory (worker/backend/backend.h). The graph cannot read
// this memory; Backend::Finish gives the graph the results of a step.
//
// Weights and rows may be passed in their 16-bit wire type. Gradients may be requested in this
// type, too. The step first widens the inputs, computes in float32, and narrows the gradients last.
//
// Not thread-safe, except Lookup. The results are a pure function of (weights, batch, dropout key).
// Buffers are kept across steps and grow with the largest batch. Batches may differ in size; the
// last one of an epoch may be short.
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

// A model input of a batch. Graph::inputs() states which span holds the input; the other span is
// empty.
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

// The ids of one table that a batch reads, without duplicates, in the order of their first
// appearance.
struct TableRows {
  std::vector<std::int64_t> ids;
  // For each id of the batch, its index in `ids`, or kAbsent for a negative id. The positions are
  // sorted by embedding layer (as listed), input of the layer, example and element.
  std::vector<std::uint32_t> position;
};

// The rows of all tables for a step. The spans may point to any memory that lives as long as the
// call.
struct Rows {
  const std::vector<TableRows>* lookup = nullptr;  // Lookup's result for this batch; one per table
  // One span per table, [ids, dimension], in the order of `ids`. A span may have further rows,
  // which must be zeros. Only the table's regularizer reads the further rows; their gradients are
  // zeros.
  std::vector<AnyIn> values;
  // One span per table: the positions of the lookup, in the backend's memory. If empty, the
  // positions in `lookup` are used.
  std::vector<std::span<const std::uint32_t>> positions = {};
};

// The marks that synchronize a step with copies, one per variable, or nullptr for none.
struct StepMarks {
  std::vector<QueueMark*> there;  // the step waits for this mark before it reads the variable
  // The step records this mark when the variable's gradient is complete.
  std::vector<QueueMark*> made;
};

struct StepResult {
  double loss_sum = 0;  // sum of the loss over examples, including the regularizers' terms
  std::vector<MetricSum> metrics;  // in the order of Graph::metrics()
  bool finite = true;              // false if the loss or a gradient is NaN or Inf
  // The first variable and the first table with a gradient that is not finite, or exceeds the range
  // of the requested 16-bit type; -1 if there is none.
  int overflowed = -1, rows_overflowed = -1;
};

class Graph {
 public:
  // A layer may read model inputs and layers that are listed before it. The output of every layer
  // must contribute to a loss. Every input and every table must be used. The losses are added up
  // and share the labels. Metrics belong to the first loss. User errors (UserError) name the layer,
  // the shapes and the expected value.
  //
  // In mixed precision, the values between layers, their gradients, and the weights that products
  // read have 16 bits. The variables, their gradients, the inputs of losses, and the values of
  // layers that request float32 (Layer::computes) are float32. `backend` must support the precision
  // (CheckPrecision) and outlives the graph.
  static absl::StatusOr<std::unique_ptr<Graph>> Build(const config::ModelSpec& model,
                                                      Backend* backend,
                                                      Precision precision = Precision::kFloat32);
  virtual ~Graph() = default;

  // The variables in the order of the plan: layer order, kernel before bias. The caller's weights
  // and gradients have the same order.
  virtual const std::vector<Variable>& variables() const = 0;
  virtual const std::vector<GraphInput>& inputs() const = 0;  // in the spec's order
  // The tables in the order of the spec. TableRows, row values and row gradients have the same
  // order. A table that no layer reads is a user error.
  virtual const std::vector<config::TableSpec>& tables() const = 0;
  virtual std::string Summary() const = 0;  // a table for people: layer, output shape, parameters
  virtual std::uint64_t label_elements() const = 0;        // number of label elements per example
  virtual const std::vector<Metric>& metrics() const = 0;  // in the spec's order

  // Determines the rows that the batch reads, one entry per table. `rows` is resized, and its
  // memory is reused. The call does not change the graph, so it may run for the next batch on
  // another thread, with its own scratch memory, while the current batch is computed. Returns
  // InvalidArgument for spans of wrong size.
  virtual absl::Status Lookup(const Batch& batch, UniqueIds* scratch,
                              std::vector<TableRows>* rows) const = 0;
  absl::StatusOr<std::vector<TableRows>> Lookup(const Batch& batch) const;

  // From the next step on, multiplies the gradients that flow from the losses by `scale`, so that
  // 16 bits can represent small gradients. Gradients of weights are divided by `scale` again. The
  // scale is a power of two, 1 by default. A gradient that overflows is reported as not finite
  // (StepResult).
  virtual void SetLossScale(float scale) = 0;

  // These functions divide a step into two parts, so that the caller can queue copies in between.
  // QueueTrainStep and QueueEvaluate queue the whole step in the backend; FinishStep waits and
  // returns the result. FinishStep must not be called for a step that could not be queued. The
  // spans must live until FinishStep has returned; the ids of `batch` are not read.
  //
  // The errors are UserError for a label out of range (with value and classes) or a batch too large
  // for the model, InvalidArgument for spans of wrong size, and ResourceExhausted if out of memory.
  // A non-finite value is no error; StepResult reports it. The step differentiates the mean loss
  // over the batch. gradients[i] and row_gradients[t] are overwritten; row_gradients[t] has as many
  // rows as rows.values[t]. The gradients of an id that the batch reads several times are summed in
  // the order of the batch. `dropout_key` is a function of the job's seed, the closure and the
  // update.
  virtual absl::Status QueueTrainStep(const std::vector<AnyIn>& weights, const Rows& rows,
                                      const Batch& batch, std::uint64_t dropout_key,
                                      const std::vector<AnyOut>& gradients,
                                      const std::vector<AnyOut>& row_gradients,
                                      const StepMarks& events) = 0;
  // Queues the forward pass only, without dropout.
  virtual absl::Status QueueEvaluate(const std::vector<AnyIn>& weights, const Rows& rows,
                                     const Batch& batch, const StepMarks& events) = 0;
  virtual absl::StatusOr<StepResult> FinishStep() = 0;

  // Returns the error of a step of `examples` examples for which the backend was out of memory. The
  // error is ResourceExhausted with the number of examples that may fit. The graph knows its own
  // memory. The caller states the bytes that it holds for the batch, the bytes that it needs per
  // example, and the bytes that it needs for any number of examples.
  struct CallersMemory {
    std::uint64_t held = 0, per_example = 0, still_wanted = 0;
  };
  virtual absl::Status NoMemory(const absl::Status& cause, std::int64_t examples,
                                bool with_gradients, const CallersMemory& callers) const = 0;

  // These functions queue and finish a step in one call. The overloads without `rows` are for
  // models without tables.
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

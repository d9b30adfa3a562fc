// A model as a DAG of layers: shapes are inferred and checked at construction, then forward, loss
// and backward over one batch.
//
// Weights live outside: the caller hands in one span per variable, and receives one gradient span
// per variable. Of an embedding table it hands in the rows that the batch reads, which Lookup
// names, and receives a gradient of the same rows:
//
//   batch ──Lookup──▶ ids (unique) ──pull──▶ rows [ids, dimension] ──TrainStep──▶ row gradients
//   [ids, dimension] ──push──▶
//                └──▶ position: which row each id of the batch reads ────┘
//
// What a step reads and writes is the backend's memory (worker/backend/backend.h): any, where that
// is the host's. The graph looks at none of it; what it learns of a step comes from
// Backend::Finish.
//
// Weights and rows may come, and gradients be wanted, as 16 bits: as they travel. They are widened
// in the step and narrowed in it, behind all that is computed with them as float32.
//
// Not thread-safe; one graph per compute thread. A pure function of (weights, batch, dropout key).
// Buffers are kept across steps and grow with the largest batch seen; batches may differ in size
// (the last one of an epoch is short).
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

// A model input of a batch, in the type that Graph::inputs() says; the other span is empty.
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

// A model input: of float32, or of ids where embedding layers read it.
struct GraphInput {
  std::string name;
  tensor::DType dtype = tensor::DType::kFloat32;
  tensor::Shape shape;
};

// Of one table: the ids that a batch reads, each once, in order of their first appearance.
struct TableRows {
  std::vector<std::int64_t> ids;
  // For each id of the batch (embedding layers in listed order, then their inputs, examples,
  // elements): where it is in `ids`; kAbsent for a negative one.
  std::vector<std::uint32_t> position;
};

// The rows of all tables that a step reads. The spans may be any memory that lives as long as the
// call.
struct Rows {
  const std::vector<TableRows>* lookup = nullptr;  // Lookup's of this very batch; one per table
  // One per table, [ids, dimension], in the order of `ids`. More rows behind those are read by
  // nothing but the table's regularizer, if it has one, for which they are zeros; their gradients
  // are zeros then.
  std::vector<AnyIn> values;
  // One per table: the lookup's positions, in the backend's memory. None: where the lookup has
  // them.
  std::vector<std::span<const std::uint32_t>> positions = {};
};

// Where a step meets copies: one per variable, null for none.
struct StepEvents {
  std::vector<Event*> there;  // the step waits for it before it reads the variable
  std::vector<Event*> made;   // the step records it when the variable's gradient is whole
};

struct StepResult {
  double loss_sum = 0;  // sum over examples of the loss, with what regularizers add to the mean
  std::vector<MetricSum> metrics;  // in the order of Graph::metrics()
  bool finite = true;              // false: the loss or a gradient is NaN or Inf
  // The first variable and the first table with a gradient that is beyond the range of the 16 bits
  // that were wanted, or not finite; -1: none.
  int overflowed = -1, rows_overflowed = -1;
};

class Graph {
 public:
  // A layer may name layers above it and model inputs. Every layer must reach a loss, every input
  // and every table must be used. Several losses are added; they share the labels. Metrics are the
  // first loss's. User errors (UserError) name the layer, the shapes and what was expected.
  //
  // In mixed precision what flows between layers, its gradients and what products read of the
  // weights are of 16 bits; weights, their gradients and what a loss reads are float32, as is what
  // layers that say so compute (Layer::computes). `backend` has the precision (CheckPrecision) and
  // outlives the graph.
  static absl::StatusOr<std::unique_ptr<Graph>> Build(const config::ModelSpec& model,
                                                      Backend* backend,
                                                      Precision precision = Precision::kFloat32);
  virtual ~Graph() = default;

  // In the order of the plan: layer order, kernel before bias. The caller's weights and gradients
  // follow it.
  virtual const std::vector<Variable>& variables() const = 0;
  virtual const std::vector<GraphInput>& inputs() const = 0;  // in the spec's order
  // In the order of the spec; TableRows, row values and row gradients follow it. A table that no
  // layer reads is a user's error.
  virtual const std::vector<config::TableSpec>& tables() const = 0;
  virtual std::string Summary() const = 0;  // a table for people: layer, output shape, parameters
  virtual std::uint64_t label_elements() const = 0;        // per example
  virtual const std::vector<Metric>& metrics() const = 0;  // in the spec's order

  // Which rows the batch reads, one entry a table (`rows` is resized, and its memory reused).
  // Changes nothing in the graph: it may be called for the next batch, from another thread with a
  // scratch of its own, while the present one computes. InvalidArgument: spans that do not fit.
  virtual absl::Status Lookup(const Batch& batch, UniqueIds* scratch,
                              std::vector<TableRows>* rows) const = 0;
  absl::StatusOr<std::vector<TableRows>> Lookup(const Batch& batch) const;

  // The gradients that flow from the losses are this many times as large from the next step on, so
  // that 16 bits can say the small ones, and those of weights are divided by it again: a power of
  // two, at first 1. What it took beyond the range is not finite (StepResult).
  virtual void SetLossScale(float scale) = 0;

  // A step in two parts, for copies to be asked for in between: Queue… asks the backend for all of
  // it, FinishStep waits and says what came of it. After an error of Queue… nothing is to be
  // finished. The spans live until FinishStep has returned; of `batch` only what is not ids is
  // read.
  //
  // UserError: a label out of range (naming value and classes), a batch too large for the model.
  // InvalidArgument: spans that do not fit. ResourceExhausted: no memory. A value that is not
  // finite is no error here: StepResult says it. Mean loss over the batch is differentiated.
  // gradients[i] and row_gradients[t], of as many rows as rows.values[t], are overwritten; an id
  // that the batch reads several times has its gradients summed there once, in the order of the
  // batch. `dropout_key` is a function of (seed, c, u).
  virtual absl::Status QueueTrainStep(const std::vector<AnyIn>& weights, const Rows& rows,
                                      const Batch& batch, std::uint64_t dropout_key,
                                      const std::vector<AnyOut>& gradients,
                                      const std::vector<AnyOut>& row_gradients,
                                      const StepEvents& events) = 0;
  // Forward only, no dropout.
  virtual absl::Status QueueEvaluate(const std::vector<AnyIn>& weights, const Rows& rows,
                                     const Batch& batch, const StepEvents& events) = 0;
  virtual absl::StatusOr<StepResult> FinishStep() = 0;

  // What to answer where memory of the backend was refused for a step of so many examples:
  // ResourceExhausted that says how many may fit. Beside the graph's own memory: what its caller
  // holds for the batch, wants for each example, and still wants whatever their number.
  struct CallersMemory {
    std::uint64_t held = 0, per_example = 0, still_wanted = 0;
  };
  virtual absl::Status NoMemory(const absl::Status& cause, std::int64_t examples,
                                bool with_gradients, const CallersMemory& callers) const = 0;

  // Both parts at once; of a model without tables.
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

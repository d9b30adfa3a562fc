// Executes steps over the nodes of a graph: forward, loss and metrics, backward, and the
// regularizers and checks of the gradients.
//
// A step is a sequence of calls of the backend's primitives. If the arguments of a step determine
// the same calls as the arguments of an earlier step (Sign), the backend may replay its record of
// these calls. Not thread-safe, except Lookup (graph.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/graph/graph.h"
#include "worker/graph/graph_nodes.h"
#include "worker/graph/step_buffers.h"
#include "worker/graph/step_results.h"

namespace evergrad::worker {

class StepExecutor final : public Graph {
 public:
  StepExecutor(GraphNodes nodes, Backend* backend);  // `backend` outlives the executor
  // Allocates the memory that every step needs: results, 16-bit copies of variables, keys. Must be
  // called once, before the first step.
  absl::Status Allocate();

  const std::vector<Variable>& variables() const override { return nodes_.variables; }
  const std::vector<GraphInput>& inputs() const override { return nodes_.inputs; }
  const std::vector<config::TableSpec>& tables() const override { return nodes_.tables; }
  std::string Summary() const override;
  std::uint64_t label_elements() const override { return nodes_.label_elements; }
  const std::vector<Metric>& metrics() const override { return nodes_.metrics; }

  absl::Status Lookup(const Batch& batch, UniqueIds* scratch,
                      std::vector<TableRows>* rows) const override;
  void SetLossScale(float scale) override { loss_scale_ = scale; }
  absl::Status QueueTrainStep(const std::vector<AnyIn>& weights, const Rows& rows,
                              const Batch& batch, std::uint64_t dropout_key,
                              const std::vector<AnyOut>& gradients,
                              const std::vector<AnyOut>& row_gradients,
                              const StepMarks& marks) override;
  absl::Status QueueEvaluate(const std::vector<AnyIn>& weights, const Rows& rows,
                             const Batch& batch, const StepMarks& marks) override;
  absl::StatusOr<StepResult> FinishStep() override;
  absl::Status NoMemory(const absl::Status& cause, std::int64_t examples, bool with_gradients,
                        const CallersMemory& callers) const override {
    return buffers_.NoMemory(cause, examples, with_gradients, callers);
  }

 private:
  In WeightsOf(const GraphLayer& node, const Batch& batch) const {
    return node.weights ? buffers_.DataOf(*node.weights, batch).floats() : In();
  }
  // Returns the inputs in the types that the node reads.
  std::vector<AnyIn> InputsOf(const GraphLayer& node, const Batch& batch) const;
  // Returns whether the caller passed the variable in the type that products read.
  bool IsReadAsItCame(const GraphLayer& node, std::size_t variable, AnyIn came) const {
    return nodes_.IsNarrowed(node, variable) && came.type() == nodes_.narrow;
  }
  std::vector<AnyIn> VariablesOf(const GraphLayer& node, const std::vector<AnyIn>& weights);
  // Makes the step wait for the node's variables, and converts them to the type that it reads.
  void PrepareVariables(const GraphLayer& node, const std::vector<AnyIn>& weights,
                        const StepMarks& marks);
  std::vector<Out> GradientsOf(const GraphLayer& node, const std::vector<AnyOut>& gradients);
  // Writes a gradient into the caller's memory after the last use of the gradient. Records
  // overflows under `number`.
  void HandOut(In gradient, AnyOut wanted, std::size_t number);
  // Converts inputs that the node reads in another type, once per step.
  void CastInputs(const GraphLayer& node, const Batch& batch);
  // Divides a gradient of weights by the loss scale.
  void Unscale(Out gradient) {
    if (loss_scale_ != 1) backend_.Scale(1 / loss_scale_, gradient, gradient);
  }
  // Adds a regularizer's term to the mean loss, and to `gradient` if there is one.
  void Regularize(double l2, In values, Out gradient, double* squares);
  // Calls write(dx), which overwrites memory of `type`, and adds the result to the gradients of
  // other consumers.
  template <typename Write>
  void Contribute(std::size_t value, std::int64_t batch, Element type, Write write);

  // Collects everything that determines the calls of a step (Backend::BeginStep).
  void Sign(const std::vector<AnyIn>& weights, const Rows& rows, const Batch& batch,
            const std::vector<AnyOut>& gradients, const std::vector<AnyOut>& row_gradients,
            const StepMarks& marks, bool training);
  void UploadKeys(std::uint64_t dropout_key);
  void Forward(Pass pass, const std::vector<AnyIn>& weights, const Rows& rows, const Batch& batch,
               const StepMarks& marks);
  void Losses(const Batch& batch, bool with_gradients);
  void Backward(Pass pass, const std::vector<AnyIn>& weights, const Rows& rows, const Batch& batch,
                const std::vector<AnyOut>& gradients, const std::vector<AnyOut>& row_gradients,
                const StepMarks& marks);
  // These functions complete gradients of variables or tables, in the caller's memory.
  void FinishGradients(const GraphLayer& node, const std::vector<AnyIn>& weights,
                       const std::vector<AnyOut>& gradients, const StepMarks& marks);
  void FinishRowGradients(const Rows& rows, const std::vector<AnyOut>& row_gradients);
  std::span<const std::uint64_t> KeyOf(const GraphLayer& node) const {
    return node.key ? keys_.as<std::uint64_t>().subspan(*node.key, 1)
                    : std::span<const std::uint64_t>();
  }

  const GraphNodes nodes_;
  Backend& backend_;
  StepBuffers buffers_;
  float loss_scale_ = 1;
  // The state of each storage in the current step: whether a consumer has written the gradient, so
  // that further consumers add to it, and whether the cast was made.
  std::vector<bool> gradient_written_, cast_made_;
  StepResults results_;
  bool handed_narrow_ = false;            // whether the queued step has 16-bit results
  std::vector<std::uint64_t> step_keys_;  // keys of the current step
  Memory keys_;                           // copy of step_keys_ in the backend's memory
  std::int64_t queued_ = 0;               // number of examples of the queued step
  bool queued_gradients_ = false;         // whether the queued step is a training step
  std::vector<std::uint64_t> signature_;
  const std::uint64_t number_;  // number of this graph among the graphs of one backend
};

}  // namespace evergrad::worker

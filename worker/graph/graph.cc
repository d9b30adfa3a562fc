#include "worker/graph/graph.h"

#include <utility>

#include "common/base/status.h"
#include "worker/graph/graph_builder.h"
#include "worker/graph/step_executor.h"

namespace evergrad::worker {

absl::StatusOr<std::vector<TableRows>> Graph::Lookup(const Batch& batch) const {
  UniqueIds scratch;
  std::vector<TableRows> rows;
  EG_RETURN_IF_ERROR(Lookup(batch, &scratch, &rows));
  return rows;
}

absl::StatusOr<StepResult> Graph::TrainStep(const std::vector<AnyIn>& weights, const Rows& rows,
                                            const Batch& batch, std::uint64_t dropout_key,
                                            const std::vector<AnyOut>& gradients,
                                            const std::vector<AnyOut>& row_gradients) {
  EG_RETURN_IF_ERROR(
      QueueTrainStep(weights, rows, batch, dropout_key, gradients, row_gradients, {}));
  return FinishStep();
}

absl::StatusOr<StepResult> Graph::Evaluate(const std::vector<AnyIn>& weights, const Rows& rows,
                                           const Batch& batch) {
  EG_RETURN_IF_ERROR(QueueEvaluate(weights, rows, batch, {}));
  return FinishStep();
}

absl::StatusOr<std::unique_ptr<Graph>> Graph::Build(const config::ModelSpec& model,
                                                    Backend* backend, Precision precision) {
  EG_ASSIGN_OR_RETURN(GraphNodes nodes, GraphBuilder(*backend, precision).Build(model));
  auto graph = std::make_unique<StepExecutor>(std::move(nodes), backend);
  EG_RETURN_IF_ERROR(graph->Allocate());
  return graph;
}

}  // namespace evergrad::worker

// Checks of a caller's arguments for a step, and the ids that a batch reads. Pure functions of the
// nodes.
//
// Spans of wrong size are mistakes of the program and give InvalidArgument. A batch that is too
// large for the model gives UserError.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "worker/graph/graph.h"
#include "worker/graph/graph_nodes.h"

namespace evergrad::worker {

// Checks weights, rows and all parts of the batch.
absl::Status CheckBatch(const GraphNodes& nodes, const std::vector<AnyIn>& weights,
                        const Rows& rows, const Batch& batch);
// Checks the spans for gradients, after CheckBatch has accepted `rows`.
absl::Status CheckGradients(const GraphNodes& nodes, const Rows& rows,
                            const std::vector<AnyOut>& gradients,
                            const std::vector<AnyOut>& row_gradients);
// Implements Graph::Lookup. The batch needs no labels.
absl::Status LookUpRows(const GraphNodes& nodes, const Batch& batch, UniqueIds* scratch,
                        std::vector<TableRows>* rows);

// Returns the index of each id of an embedding in the rows of its table. CheckBatch must have
// accepted the batch.
std::span<const std::uint32_t> PositionsOf(const GraphLayer& embedding, const Rows& rows,
                                           std::int64_t batch);

}  // namespace evergrad::worker

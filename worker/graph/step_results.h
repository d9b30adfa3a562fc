// The results of a step, with their positions in the ResultBlock that primitives fill. Read makes a
// StepResult of these results when the step has ended. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/graph/graph.h"
#include "worker/graph/graph_nodes.h"
#include "worker/graph/result_block.h"

namespace evergrad::worker {

class StepResults {
 public:
  explicit StepResults(const GraphNodes& nodes);  // `nodes` outlives the object
  absl::Status Allocate(Backend& backend) { return block_.Allocate(backend); }

  // Returns the memory that primitives fill.
  LossResult* loss(std::size_t loss) { return block_.Of(losses_[loss]).data(); }
  // These functions return the counts of an auc and the sum of a root mean squared error. For
  // another metric the span is empty.
  std::span<std::int64_t> counts(std::size_t metric) { return block_.Of(metrics_[metric].counts); }
  std::span<double> sum(std::size_t metric) { return block_.Of(metrics_[metric].sum); }
  // Returns the sum of squares of a variable or table with a regularizer.
  double* squares(std::size_t variable) { return block_.Of(squares_[variable]).data(); }
  double* row_squares(std::size_t table) { return block_.Of(row_squares_[table]).data(); }
  // not_finite has one flag for all gradients. overflows has one flag per gradient: first the
  // gradients of the variables, then the gradients of the tables.
  std::span<std::uint64_t> not_finite() { return block_.Of(not_finite_); }
  std::span<std::uint64_t> overflows() { return block_.Of(overflows_); }

  // Waits for the end of the step.
  absl::Status Fetch(Backend& backend) { return block_.Fetch(backend); }
  // Returns the result of the fetched step. Returns UserError for a label out of range.
  // `handed_narrow` states whether the step had 16-bit results. Only such a step sets overflows().
  absl::StatusOr<StepResult> Read(std::int64_t batch, bool handed_narrow) const;

 private:
  struct MetricFields {
    ResultBlock::ResultField<std::int64_t> counts;
    ResultBlock::ResultField<double> sum;
  };
  // Returns the first of the `count` gradients from `begin` that has overflowed, or -1.
  int FirstOverflow(std::size_t begin, std::size_t count) const;

  const GraphNodes& nodes_;
  ResultBlock block_;
  std::vector<ResultBlock::ResultField<LossResult>> losses_;
  std::vector<MetricFields> metrics_;
  std::vector<ResultBlock::ResultField<double>> squares_, row_squares_;
  ResultBlock::ResultField<std::uint64_t> not_finite_, overflows_;
};

}  // namespace evergrad::worker

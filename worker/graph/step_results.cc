#include "worker/graph/step_results.h"

#include <cmath>

#include "common/base/status.h"
#include "worker/graph/losses.h"

namespace evergrad::worker {

StepResults::StepResults(const GraphNodes& nodes) : nodes_(nodes) {
  for (std::size_t l = 0; l < nodes_.losses.size(); ++l)
    losses_.push_back(block_.Add<LossResult>());
  for (const Metric& metric : nodes_.metrics) {
    MetricFields& fields = metrics_.emplace_back();
    if (metric.type == MetricType::kAuc) fields.counts = block_.Add<std::int64_t>(2 * kAucBins);
    if (metric.type == MetricType::kRootMeanSquaredError) fields.sum = block_.Add<double>();
  }
  const auto squares = [this](double l2) {
    return l2 != 0 ? block_.Add<double>() : ResultBlock::ResultField<double>();
  };
  for (const Variable& variable : nodes_.variables) squares_.push_back(squares(variable.l2));
  for (const config::TableSpec& table : nodes_.tables) row_squares_.push_back(squares(table.l2));
  not_finite_ = block_.Add<std::uint64_t>();
  overflows_ = block_.Add<std::uint64_t>(nodes_.variables.size() + nodes_.tables.size());
}

absl::StatusOr<StepResult> StepResults::Read(std::int64_t batch, bool handed_narrow) const {
  StepResult result;
  for (std::size_t l = 0; l < nodes_.losses.size(); ++l) {
    const LossResult loss = block_.Get(losses_[l]);
    EG_RETURN_IF_ERROR(CheckLabels(nodes_.losses[l].loss, loss));
    result.loss_sum += loss.sum;
  }
  for (std::size_t m = 0; m < nodes_.metrics.size(); ++m) {
    const MetricFields& fields = metrics_[m];
    MetricSum& sum = result.metrics.emplace_back();
    if (nodes_.metrics[m].type == MetricType::kAccuracy) sum.count = block_.Get(losses_[0]).correct;
    if (fields.sum.count > 0) sum.sum = block_.Get(fields.sum);
    for (std::size_t i = 0; i < fields.counts.count; ++i)
      sum.counts.push_back(block_.Get(fields.counts, i));
  }
  double regularizers = 0;
  for (std::size_t v = 0; v < nodes_.variables.size(); ++v) {
    if (nodes_.variables[v].l2 != 0)
      regularizers += nodes_.variables[v].l2 * block_.Get(squares_[v]);
  }
  for (std::size_t t = 0; t < nodes_.tables.size(); ++t) {
    if (nodes_.tables[t].l2 != 0) regularizers += nodes_.tables[t].l2 * block_.Get(row_squares_[t]);
  }
  result.loss_sum += static_cast<double>(batch) * regularizers;
  result.finite = std::isfinite(result.loss_sum) && block_.Get(not_finite_) == 0;
  if (handed_narrow) {
    result.overflowed = FirstOverflow(0, nodes_.variables.size());
    result.rows_overflowed = FirstOverflow(nodes_.variables.size(), nodes_.tables.size());
  }
  return result;
}

int StepResults::FirstOverflow(std::size_t begin, std::size_t count) const {
  for (std::size_t i = 0; i < count; ++i)
    if (block_.Get(overflows_, begin + i) != 0) return static_cast<int>(i);
  return -1;
}

}  // namespace evergrad::worker

// What is measured beside the loss, as sums that add up over batches and closures in any cut; the
// coordinator makes one number of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "worker/graph/losses.h"

namespace evergrad::worker {

enum class MetricType { kAccuracy, kAuc, kRootMeanSquaredError };

struct Metric {
  std::string name;  // as the job names it
  MetricType type = MetricType::kAccuracy;
};
struct MetricSum {
  std::int64_t count = 0;  // accuracy: correct examples
  double sum = 0;  // root_mean_squared_error: over examples, of the mean square of their elements
  std::vector<std::int64_t>
      counts;  // auc: positives, then negatives, by bin: (b / 199, (b + 1) / 199], the first with 0
  void Add(const MetricSum& other);
};

// Reads `name` against the loss whose output, of this shape, it measures. UserError where it is not
// defined.
absl::StatusOr<Metric> MakeMetric(const std::string& name, const config::LossSpec& spec,
                                  const tensor::Shape& output);

}  // namespace evergrad::worker

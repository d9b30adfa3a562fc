// Metrics as sums, which can be added over any division into batches and closures. The coordinator
// computes one number from the sums.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "common/layers/kinds.h"
#include "worker/graph/losses.h"

namespace evergrad::worker {

using config::MetricType;

struct Metric {
  std::string name;  // the name in the job
  MetricType type = MetricType::kAccuracy;
};
struct MetricSum {
  std::int64_t count = 0;  // accuracy: correct examples
  // For root_mean_squared_error, the sum over examples of the mean square of the elements.
  double sum = 0;
  // For auc, the number of positive examples per bin, then the number of negative examples per bin.
  // Bin b is (b / 199, (b + 1) / 199]; the first bin includes 0.
  std::vector<std::int64_t> counts;
  void Add(const MetricSum& other);
};

// Parses `name` for a loss with an output of this shape. Returns UserError if the metric is not
// defined for the loss.
absl::StatusOr<Metric> MakeMetric(const std::string& name, const config::LossSpec& spec,
                                  const tensor::Shape& output);

}  // namespace evergrad::worker

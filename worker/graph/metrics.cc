#include "worker/graph/metrics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/layers/metrics.h"
#include "common/layers/named.h"

namespace evergrad::worker {
namespace {

// Covers every metric in common/layers. The table there has checked the name.
MetricType MetricTypeOf(absl::string_view name) {
  if (name == "accuracy" || name == "binary_accuracy") return MetricType::kAccuracy;
  if (name == "auc") return MetricType::kAuc;
  EG_CHECK(name == "root_mean_squared_error");
  return MetricType::kRootMeanSquaredError;
}

}  // namespace

void MetricSum::Add(const MetricSum& other) {
  count += other.count;
  sum += other.sum;
  if (counts.size() < other.counts.size()) counts.resize(other.counts.size());
  for (std::size_t i = 0; i < other.counts.size(); ++i) counts[i] += other.counts[i];
}

absl::StatusOr<Metric> MakeMetric(const std::string& name, const config::LossSpec& spec,
                                  const tensor::Shape& output) {
  const std::vector<std::string> names = config::NamesOf(config::Metrics(), true);
  if (std::find(names.begin(), names.end(), name) == names.end())
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("unknown metric `", name, "`; one of ", absl::StrJoin(names, ", "))));
  if (const absl::Status defined = config::CheckMetric(name, spec, output); !defined.ok())
    return LossError(spec, defined.message());
  return Metric{name, MetricTypeOf(name)};
}

}  // namespace evergrad::worker

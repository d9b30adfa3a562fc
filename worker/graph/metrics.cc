#include "worker/graph/metrics.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace evergrad::worker {

void MetricSum::Add(const MetricSum& other) {
  count += other.count;
  sum += other.sum;
  if (counts.size() < other.counts.size()) counts.resize(other.counts.size());
  for (std::size_t i = 0; i < other.counts.size(); ++i) counts[i] += other.counts[i];
}

absl::StatusOr<Metric> MakeMetric(const std::string& name, const config::LossSpec& spec,
                                  const Loss& loss) {
  const auto undefined = [&](absl::string_view why) {
    return LossError(spec, absl::StrCat("metric `", name, "` ", why));
  };
  if (name == "accuracy" || name == "binary_accuracy") {
    if (loss.type == LossType::kMeanSquaredError) return undefined("is not defined for it");
    if (name == "binary_accuracy" && loss.type != LossType::kBinaryCrossentropy)
      return undefined("is not defined for it; did you mean `accuracy`?");
    if (loss.label_elements() != 1)
      return undefined(absl::StrCat("needs one label an example; output `", spec.output, "` wants ",
                                    loss.label_elements()));
    return Metric{name, MetricType::kAccuracy};
  }
  if (name == "auc") {
    if (loss.type != LossType::kBinaryCrossentropy)
      return undefined("is not defined for it; it needs binary_crossentropy");
    return Metric{name, MetricType::kAuc};
  }
  if (name == "root_mean_squared_error") {
    if (loss.type != LossType::kMeanSquaredError)
      return undefined("is not defined for it; it needs mean_squared_error");
    return Metric{name, MetricType::kRootMeanSquaredError};
  }
  return UserError(absl::InvalidArgumentError(
      absl::StrCat("unknown metric `", name,
                   "`; one of accuracy, binary_accuracy, auc, root_mean_squared_error")));
}

}  // namespace evergrad::worker

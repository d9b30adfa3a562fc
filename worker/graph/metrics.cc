#include "worker/graph/metrics.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace evergrad::worker {

void MetricSum::Add(const MetricSum& other) {
  count += other.count;
  sum += other.sum;
  if (counts.size() < other.counts.size()) counts.resize(other.counts.size());
  for (std::size_t i = 0; i < other.counts.size(); ++i) counts[i] += other.counts[i];
}

absl::StatusOr<Metric> MakeMetric(const std::string& name, const config::LossSpec& spec, const Loss& loss) {
  const auto undefined = [&](absl::string_view why) { return LossError(spec, absl::StrCat("metric `", name, "` ", why)); };
  if (name == "accuracy" || name == "binary_accuracy") {
    if (loss.type == LossType::kMeanSquaredError) return undefined("is not defined for it");
    if (name == "binary_accuracy" && loss.type != LossType::kBinaryCrossentropy) return undefined("is not defined for it; did you mean `accuracy`?");
    if (loss.label_elements() != 1)
      return undefined(absl::StrCat("needs one label an example; output `", spec.output, "` wants ", loss.label_elements()));
    return Metric{name, MetricType::kAccuracy};
  }
  if (name == "auc") {
    if (loss.type != LossType::kBinaryCrossentropy) return undefined("is not defined for it; it needs binary_crossentropy");
    return Metric{name, MetricType::kAuc};
  }
  if (name == "root_mean_squared_error") {
    if (loss.type != LossType::kMeanSquaredError) return undefined("is not defined for it; it needs mean_squared_error");
    return Metric{name, MetricType::kRootMeanSquaredError};
  }
  return UserError(
      absl::InvalidArgumentError(absl::StrCat("unknown metric `", name, "`; one of accuracy, binary_accuracy, auc, root_mean_squared_error")));
}

MetricSum Measure(const Metric& metric, const Loss& loss, std::int64_t batch, std::int64_t correct, std::span<const float> output,
                  std::span<const float> labels) {
  MetricSum sum;
  switch (metric.type) {
    case MetricType::kAccuracy: sum.count = correct; break;
    case MetricType::kAuc:
      sum.counts.resize(2 * kAucBins);
      for (std::size_t i = 0; i < output.size(); ++i) {
        const double x = output[i];
        const double p = loss.from_logits ? 1.0 / (1.0 + std::exp(-x)) : x;
        // NaN falls into the first bin; the step that made it is not finite, and said so.
        const double bin = std::ceil(p * kAucBins) - 1;
        const int b = bin > 0 ? static_cast<int>(std::min<double>(bin, kAucBins - 1)) : 0;
        ++sum.counts[static_cast<std::size_t>(b + (labels[i] > 0.5f ? 0 : kAucBins))];
      }
      break;
    case MetricType::kRootMeanSquaredError: {
      const std::size_t elements = static_cast<std::size_t>(loss.label_elements());
      for (std::size_t n = 0; n < static_cast<std::size_t>(batch); ++n) {
        double example = 0;
        for (std::size_t i = n * elements; i < (n + 1) * elements; ++i) {
          const double difference = static_cast<double>(output[i]) - labels[i];
          example += difference * difference;
        }
        sum.sum += example / static_cast<double>(elements);
      }
      break;
    }
  }
  return sum;
}

}  // namespace evergrad::worker

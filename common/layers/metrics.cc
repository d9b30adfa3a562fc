#include "common/layers/metrics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/layers/named.h"

namespace evergrad::config {

const std::vector<MetricDescriptor>& Metrics() {
  static const std::vector<MetricDescriptor> table = {
      {.name = "accuracy",
       .kind = MetricType::kAccuracy,
       .losses = {"sparse_categorical_crossentropy", "binary_crossentropy"},
       .one_label = true},
      {.name = "binary_accuracy",
       .kind = MetricType::kAccuracy,
       .losses = {"binary_crossentropy"},
       .one_label = true,
       .instead = "accuracy"},
      {.name = "auc", .kind = MetricType::kAuc, .losses = {"binary_crossentropy"}},
      {.name = "root_mean_squared_error",
       .kind = MetricType::kRootMeanSquaredError,
       .losses = {"mean_squared_error"},
       .nickname = "rmse"},
      {"precision", false},
      {"recall", false},
      {"mean_absolute_error", false},
      {"mean_squared_error", false},
      {"top_k_accuracy", false},
      {"f1", false},
      {"log_loss", false}};
  return table;
}

bool IsDefinedFor(const MetricDescriptor& metric, absl::string_view loss) {
  return std::find(metric.losses.begin(), metric.losses.end(), loss) != metric.losses.end();
}

absl::Status CheckMetric(absl::string_view name, const LossSpec& loss,
                         const tensor::Shape& output) {
  const MetricDescriptor* const metric = FindBuilt(Metrics(), name);
  const LossDescriptor* const descriptor = FindBuilt(Losses(), loss.type);
  EG_CHECK(metric != nullptr && descriptor != nullptr);
  const auto error = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("metric `", name, "` ", why));
  };
  if (!IsDefinedFor(*metric, loss.type)) {
    if (!metric->instead.empty() && descriptor->has_classes)
      return error(
          absl::StrCat("is not defined for this loss; did you mean `", metric->instead, "`?"));
    if (metric->one_label) return error("is not defined for this loss");
    return error(absl::StrCat("is not defined for this loss: expected ", metric->losses[0]));
  }
  const std::uint64_t labels = LabelElements(*descriptor, output);
  if (metric->one_label && labels != 1)
    return error(
        absl::StrCat("needs one label per example: output=`", loss.output, "` labels=", labels));
  return absl::OkStatus();
}

}  // namespace evergrad::config

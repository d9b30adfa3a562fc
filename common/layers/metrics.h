// The table of metrics and the losses for which each is defined. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/layers/losses.h"

namespace evergrad::config {

struct MetricDescriptor {
  std::string name;
  bool built = true;
  MetricType kind = MetricType::kAccuracy;  // valid if `built`
  std::vector<std::string> losses = {};     // losses for which the metric is defined
  // Whether the metric needs a loss with one label per example.
  bool one_label = false;
  // The metric that the error message suggests if this metric is not defined for the loss, and the
  // loss has classes.
  std::string instead = {};
  std::string nickname = {};  // another name that users try
};

// Returns the metrics in the order in which messages and the reference list them.
const std::vector<MetricDescriptor>& Metrics();

bool IsDefinedFor(const MetricDescriptor& metric, absl::string_view loss);
// Checks whether the metric, one of Metrics(), is defined for the loss. `output` is the shape of
// the loss's output for one example. The error is InvalidArgument; the caller prepends the place
// and the name of the loss.
absl::Status CheckMetric(absl::string_view name, const LossSpec& loss, const tensor::Shape& output);

}  // namespace evergrad::config

// `--require accuracy>=0.86`: what a run must have reached. Pure.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace evergrad::psctl {

struct Requirement {
  std::string metric, comparison;  // >= > <= <
  double value = 0;
  std::string text;  // as given
};
// InvalidArgument with what was expected.
absl::StatusOr<Requirement> ParseRequirement(absl::string_view text);
// One line for each that is not met; a metric that the job does not have, or that is NaN, is not
// met.
std::vector<std::string> Unmet(const std::vector<Requirement>& requirements,
                               const std::map<std::string, double>& metrics);
// The numbers under `metrics` of a result.json; empty when it cannot be read.
std::map<std::string, double> MetricsOf(absl::string_view result_json);
// The same in the order of the file: the metrics that the job asked for come first, in its order.
std::vector<std::pair<std::string, double>> MetricsInOrder(absl::string_view result_json);

}  // namespace evergrad::psctl

// Parses `--require accuracy>=0.86`: the metrics that a run must reach. Pure.
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
  std::string text;  // as given by the user
};
// Returns InvalidArgument with the expected form if `text` is malformed.
absl::StatusOr<Requirement> ParseRequirement(absl::string_view text);
// Returns one line for each requirement that is not met. A metric that the job lacks, or that is
// NaN, does not meet its requirement.
std::vector<std::string> Unmet(const std::vector<Requirement>& requirements,
                               const std::map<std::string, double>& metrics);
// Returns the numbers under `metrics` of a result.json; empty if it cannot be read.
std::map<std::string, double> MetricsOf(absl::string_view result_json);
// Returns the same numbers as MetricsOf, in the order of the file: the metrics that the job asked
// for come first.
std::vector<std::pair<std::string, double>> MetricsInOrder(absl::string_view result_json);

}  // namespace evergrad::psctl

#include "coordinator/psctl/require.h"

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/schema/scalar.h"

namespace evergrad::psctl {

absl::StatusOr<Requirement> ParseRequirement(absl::string_view text) {
  const absl::Status refusal = UserError(absl::InvalidArgumentError(
      absl::StrCat("--require: expected METRIC>=NUMBER (or >, <=, <), got `", text, "`")));
  const std::size_t at = text.find_first_of("<>");
  if (at == absl::string_view::npos) return refusal;
  const std::size_t length = at + 1 < text.size() && text[at + 1] == '=' ? 2 : 1;
  Requirement requirement{std::string(absl::StripAsciiWhitespace(text.substr(0, at))),
                          std::string(text.substr(at, length)), 0, std::string(text)};
  const auto value = config::ParseReal(absl::StripAsciiWhitespace(text.substr(at + length)));
  if (requirement.metric.empty() || !value.ok()) return refusal;
  requirement.value = *value;
  return requirement;
}

std::vector<std::string> Unmet(const std::vector<Requirement>& requirements,
                               const std::map<std::string, double>& metrics) {
  std::vector<std::string> lines;
  for (const Requirement& r : requirements) {
    const auto found = metrics.find(r.metric);
    if (found == metrics.end()) {
      lines.push_back(
          absl::StrCat("not met: ", r.text, ": the job has no metric `", r.metric, "` (it has: ",
                       metrics.empty() ? "none"
                                       : absl::StrJoin(metrics, ", ",
                                                       [](std::string* out, const auto& m) {
                                                         absl::StrAppend(out, m.first);
                                                       }),
                       ")"));
      continue;
    }
    const double v = found->second;
    const bool met = r.comparison == ">="   ? v >= r.value
                     : r.comparison == ">"  ? v > r.value
                     : r.comparison == "<=" ? v <= r.value
                                            : v < r.value;
    if (!met) lines.push_back(absl::StrCat("not met: ", r.text, ": got ", config::FormatReal(v)));
  }
  return lines;
}

std::vector<std::pair<std::string, double>> MetricsInOrder(absl::string_view result_json) {
  std::vector<std::pair<std::string, double>> metrics;
  const auto json =
      nlohmann::ordered_json::parse(result_json.begin(), result_json.end(), nullptr, false);
  if (!json.is_object() || !json.contains("metrics") || !json["metrics"].is_object())
    return metrics;
  for (const auto& [name, value] : json["metrics"].items())
    if (value.is_number()) metrics.emplace_back(name, value.get<double>());
  return metrics;
}

std::map<std::string, double> MetricsOf(absl::string_view result_json) {
  const auto metrics = MetricsInOrder(result_json);
  return {metrics.begin(), metrics.end()};
}

}  // namespace evergrad::psctl

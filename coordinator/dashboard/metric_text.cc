#include "coordinator/dashboard/metric_text.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace evergrad::coordinator {

std::vector<std::string> MetricsInOrder(const std::vector<std::string>& asked,
                                        const std::map<std::string, double>& values) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (values.contains(name) && std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  };
  for (const std::string& name : asked) add(name);
  add("loss");
  for (const auto& [name, value] : values) add(name);
  return names;
}

std::string MetricTitle(const std::string& name) {
  if (name == "auc") return "AUC";
  if (name == "root_mean_squared_error") return "RMSE";
  return absl::StrReplaceAll(name, {{"_", " "}});
}

bool IsShare(const std::string& name) { return name == "accuracy" || name == "binary_accuracy"; }

std::string MetricValue(const std::string& name, double value) {
  if (!std::isfinite(value)) return "–";
  if (IsShare(name)) return absl::StrFormat("%.2f %%", 100 * value);
  return std::fabs(value) < 1e7 ? absl::StrFormat("%.4f", value) : absl::StrFormat("%.2e", value);
}

}  // namespace evergrad::coordinator

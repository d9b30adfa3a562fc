// Formats the metrics of an evaluation for people. The metrics have their usual names, and the
// order in which the job asked for them. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace evergrad::coordinator {

// Returns the names in `values`: first the names in `asked` in their order, then the loss, then all
// other names.
std::vector<std::string> MetricsInOrder(const std::vector<std::string>& asked,
                                        const std::map<std::string, double>& values);

// Returns "AUC" for "auc" and "RMSE" for "root_mean_squared_error". For an unknown name it returns
// the name with spaces in place of underscores.
std::string MetricTitle(const std::string& name);
// Returns whether the metric is a share that is shown in percent.
bool IsShare(const std::string& name);
// Returns "87.12 %" or "0.8480", and "–" for a value that is not a number.
std::string MetricValue(const std::string& name, double value);

}  // namespace evergrad::coordinator

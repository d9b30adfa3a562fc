// Metrics of an evaluation as people read them: in the order in which the job asked for them, with
// their usual names. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace evergrad::coordinator {

// The names in `values`: those of `asked` in their order, then the loss, then whatever else there
// is.
std::vector<std::string> MetricsInOrder(const std::vector<std::string>& asked,
                                        const std::map<std::string, double>& values);

// "AUC" of "auc", "RMSE" of "root_mean_squared_error"; of a name that is not known, the name with
// spaces for underscores.
std::string MetricTitle(const std::string& name);
// Whether it is a share that is shown in percent.
bool IsShare(const std::string& name);
// "87.12 %", "0.8480"; "–" of what is not a number.
std::string MetricValue(const std::string& name, double value);

}  // namespace evergrad::coordinator

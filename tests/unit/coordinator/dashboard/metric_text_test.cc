#include "coordinator/dashboard/metric_text.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace evergrad::coordinator {
namespace {

TEST_CASE("metrics are listed in the requested order, then the loss, then the others") {
  using Names = std::vector<std::string>;
  CHECK(MetricsInOrder({"b", "a", "missing"}, {{"a", 1}, {"b", 2}, {"loss", 3}, {"extra", 4}}) ==
        Names{"b", "a", "loss", "extra"});
  CHECK(MetricsInOrder({"loss", "a"}, {{"a", 1}, {"loss", 3}}) == Names{"loss", "a"});
  CHECK(MetricsInOrder({}, {}).empty());
}

TEST_CASE("metrics have their usual names and formats") {
  CHECK(MetricTitle("auc") == "AUC");
  CHECK(MetricTitle("root_mean_squared_error") == "RMSE");
  CHECK(MetricTitle("binary_accuracy") == "binary accuracy");
  CHECK(MetricValue("accuracy", 0.87124) == "87.12 %");
  CHECK(MetricValue("auc", 0.91234) == "0.9123");
  CHECK(MetricValue("root_mean_squared_error", 2e9) == "2.00e+09");
  CHECK(MetricValue("auc", std::nan("")) == "–");
}

}  // namespace
}  // namespace evergrad::coordinator

// Tests how the counts of all closures of an evaluation are reduced to one metric.
#include "coordinator/jobs/evaluation.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace evergrad::coordinator {
namespace {

v1::NamedSum Auc(std::vector<std::int64_t> positives, std::vector<std::int64_t> negatives) {
  v1::NamedSum sum;
  sum.set_reduction(v1::AUC);
  for (const std::int64_t count : positives) sum.add_counts(count);
  for (const std::int64_t count : negatives) sum.add_counts(count);
  return sum;
}

TEST_CASE("a metric is a mean by default") {
  v1::NamedSum sum;
  sum.set_is_integer(true);
  sum.set_count(30);
  sum.set_sum(7);
  CHECK(Reduced(sum, 40) == 0.75);
  sum.set_is_integer(false);
  CHECK(Reduced(sum, 14) == 0.5);
  sum.set_reduction(v1::ROOT_MEAN);
  sum.set_sum(90);
  CHECK(Reduced(sum, 10) == 3);
  sum.set_reduction(static_cast<v1::Reduction>(99));
  CHECK(std::isnan(Reduced(sum, 10)));
}

TEST_CASE(
    "AUC is the share of correctly ordered pairs of a positive and a negative, and a tie counts "
    "half") {
  CHECK(Reduced(Auc({0, 0, 5}, {3, 0, 0}), 8) == 1);
  CHECK(Reduced(Auc({5, 0, 0}, {0, 0, 3}), 8) == 0);
  CHECK(Reduced(Auc({0, 5, 0}, {0, 3, 0}), 8) == 0.5);
  // The positive examples are in the bins 0, 1, 1 and 2, and the negative ones are in the bins 0, 1
  // and 2. Among the 12 pairs, four are ties: (0,0), (2,2) and twice (1,1). In four pairs the
  // positive example is in the higher bin: 1>0 twice, 2>0 and 2>1.
  CHECK(Reduced(Auc({1, 2, 1}, {1, 1, 1}), 7) == Approx((4 + 4 * 0.5) / 12));
  CHECK(std::isnan(Reduced(Auc({1, 2, 1}, {0, 0, 0}), 4)));
  CHECK(std::isnan(Reduced(Auc({}, {}), 4)));
}

}  // namespace
}  // namespace evergrad::coordinator

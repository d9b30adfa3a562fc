// Tests how the results of an evaluation's closures are summed.
#include "coordinator/jobs/evaluation.h"

#include <catch2/catch.hpp>
#include <limits>

namespace evergrad::coordinator {
namespace {

v1::ClosureMetrics Closure(std::uint64_t examples, double loss_sum) {
  v1::ClosureMetrics metrics;
  metrics.set_examples(examples);
  metrics.set_loss_sum(loss_sum);
  return metrics;
}

v1::NamedSum* AddSum(v1::ClosureMetrics* metrics, const char* name, std::int64_t count,
                     double sum) {
  v1::NamedSum* one = metrics->add_sums();
  one->set_name(name);
  one->set_count(count);
  one->set_sum(sum);
  return one;
}

TEST_CASE("losses and metrics are sums over all examples") {
  EvaluationSum sum;
  v1::ClosureMetrics one = Closure(4, 8), two = Closure(1, 2);
  AddSum(&one, "hinge", 0, 3)->set_reduction(v1::MEAN);
  AddSum(&two, "hinge", 0, 2)->set_reduction(v1::MEAN);
  sum.Add(one);
  sum.Add(two);
  const EvaluationResult result = sum.Result(/*counts_only=*/false);
  CHECK(result.metrics.at("loss") == 2.0);
  CHECK(result.metrics.at("hinge") == 1.0);
  CHECK(result.counts.empty());
}

TEST_CASE("a counting evaluation has no loss") {
  EvaluationSum sum;
  v1::ClosureMetrics one = Closure(4, 8);
  AddSum(&one, "count", 7, 0)->set_is_integer(true);
  sum.Add(one);
  sum.Add(one);
  const EvaluationResult result = sum.Result(/*counts_only=*/true);
  CHECK(result.metrics.empty());
  CHECK(result.counts.at("count") == 14);
}

TEST_CASE("an evaluation without examples has no result") {
  EvaluationSum sum;
  v1::ClosureMetrics one = Closure(0, 8);
  AddSum(&one, "hinge", 0, 3);
  sum.Add(one);
  CHECK(sum.Result(false).metrics.empty());
}

TEST_CASE("the counts of a histogram of any size are added bin by bin") {
  EvaluationSum sum;
  v1::ClosureMetrics one = Closure(1, 0), two = Closure(1, 0);
  v1::NamedSum* a = AddSum(&one, "auc", 0, 0);
  v1::NamedSum* b = AddSum(&two, "auc", 0, 0);
  a->set_reduction(v1::AUC);
  b->set_reduction(v1::AUC);
  // Closure `one` has one positive example, in the upper bin.
  for (const int count : {0, 1}) a->add_counts(count);
  // Closure `two` has one negative example, in the lower bin.
  for (const int count : {0, 0, 1, 0}) b->add_counts(count);
  sum.Add(one);
  sum.Add(two);
  CHECK(sum.Result(false).metrics.at("auc") == Approx(1));
}

TEST_CASE("counts beyond all bounds wrap") {
  EvaluationSum sum;
  v1::ClosureMetrics one = Closure(1, 0), two = Closure(1, 0);
  AddSum(&one, "count", std::numeric_limits<std::int64_t>::max(), 0)->set_is_integer(true);
  AddSum(&two, "count", 1, 0)->set_is_integer(true);
  sum.Add(one);
  sum.Add(two);
  CHECK(sum.Result(true).counts.at("count") == std::numeric_limits<std::int64_t>::min());
}

}  // namespace
}  // namespace evergrad::coordinator

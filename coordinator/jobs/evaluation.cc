#include "coordinator/jobs/evaluation.h"

#include <cmath>

#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

std::int64_t WrappingSum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

// Returns the area under the curve of (false positive rate, true positive rate): the sum of
// trapezoids, from the highest threshold down, which is Keras's method "interpolation".
double AreaUnderRoc(const v1::NamedSum& sum) {
  const int bins = sum.counts_size() / 2;
  double positives = 0, negatives = 0;
  for (int b = 0; b < bins; ++b) {
    positives += static_cast<double>(sum.counts(b));
    negatives += static_cast<double>(sum.counts(bins + b));
  }
  double area = 0, above = 0;
  for (int b = bins - 1; b >= 0; --b) {
    const double here = static_cast<double>(sum.counts(b));
    area += static_cast<double>(sum.counts(bins + b)) * (above + here / 2);
    above += here;
  }
  return positives > 0 && negatives > 0 ? area / (positives * negatives) : std::nan("");
}

}  // namespace

double Reduced(const v1::NamedSum& sum, double examples) {
  const double mean = (sum.is_integer() ? static_cast<double>(sum.count()) : sum.sum()) / examples;
  switch (sum.reduction()) {
    case v1::MEAN: return mean;
    case v1::ROOT_MEAN: return std::sqrt(mean);
    case v1::AUC: return AreaUnderRoc(sum);
    default: return std::nan("");
  }
}

void EvaluationResult::Fill(v1::JobSnapshot* snapshot) const {
  for (const auto& [name, value] : metrics) {
    v1::JobNamedValue* one = snapshot->add_final_metrics();
    one->set_name(name);
    one->set_value(value);
  }
  for (const auto& [name, count] : counts) {
    v1::JobNamedValue* one = snapshot->add_final_metrics();
    one->set_name(name);
    one->set_count(count);
    one->set_is_count(true);
  }
}

void EvaluationResult::Read(const v1::JobSnapshot& snapshot) {
  for (const v1::JobNamedValue& one : snapshot.final_metrics()) {
    if (one.is_count())
      counts[one.name()] = one.count();
    else
      metrics[one.name()] = one.value();
  }
}

void EvaluationSum::Add(const v1::ClosureMetrics& metrics) {
  examples_ += metrics.examples();
  loss_sum_ += metrics.loss_sum();
  for (const v1::NamedSum& sum : metrics.sums()) {
    v1::NamedSum& total = sums_[sum.name()];
    total.set_is_integer(sum.is_integer());
    total.set_count(WrappingSum(total.count(), sum.count()));
    total.set_sum(total.sum() + sum.sum());
    total.set_reduction(sum.reduction());
    while (total.counts_size() < sum.counts_size()) total.add_counts(0);
    for (int i = 0; i < sum.counts_size(); ++i)
      total.set_counts(i, WrappingSum(total.counts(i), sum.counts(i)));
  }
}

EvaluationResult EvaluationSum::Result(bool counts_only) const {
  EvaluationResult result;
  const double n = static_cast<double>(examples_);
  if (!counts_only && examples_ > 0) result.metrics["loss"] = loss_sum_ / n;
  for (const auto& [name, sum] : sums_) {
    if (counts_only && sum.is_integer())
      result.counts[name] = sum.count();
    else if (examples_ > 0)
      result.metrics[name] = Reduced(sum, n);
  }
  return result;
}

}  // namespace evergrad::coordinator

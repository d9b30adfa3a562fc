#include "coordinator/jobs/reduce_metric.h"

#include <cmath>

namespace evergrad::coordinator {
namespace {

// Trapezoids under (false positive rate, true positive rate), from the highest threshold down: what
// Keras calls interpolation.
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

}  // namespace evergrad::coordinator

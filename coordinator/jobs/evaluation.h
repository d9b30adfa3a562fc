// The result of an evaluation: the sums that its closures report, added in their order and reduced
// to one number for each metric. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "evergrad/v1/session.pb.h"

namespace evergrad::v1 {
class JobSnapshot;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

// Maximum number of counts of one metric in one Done. A Done with more is refused.
inline constexpr int kMetricCountsMax = 4096;

// Returns the mean over the examples, the root of this mean, or the AUC, as the reduction of `sum`
// requires. Returns NaN if the result is undefined: for AUC without positives or without negatives,
// or for a reduction that this build does not know.
double Reduced(const v1::NamedSum& sum, double examples);

struct EvaluationResult {
  // By name of the metric, including `loss`. An undefined value is NaN.
  std::map<std::string, double> metrics;
  std::map<std::string, std::int64_t> counts;  // The counters of a counting job.

  void Fill(v1::JobSnapshot* snapshot) const;
  void Read(const v1::JobSnapshot& snapshot);
};

class EvaluationSum {
 public:
  // Adds the sums of one closure. Integers wrap instead of overflowing, whatever a worker reports.
  void Add(const v1::ClosureMetrics& metrics);
  // Returns the result. With `counts_only` the integers are counts, and the result has no loss.
  // Without examples the result has no metrics.
  EvaluationResult Result(bool counts_only) const;

 private:
  std::uint64_t examples_ = 0;
  double loss_sum_ = 0;
  std::map<std::string, v1::NamedSum> sums_;
};

}  // namespace evergrad::coordinator

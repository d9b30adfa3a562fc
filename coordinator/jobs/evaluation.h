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

// Counts of one metric of one closure; a Done with more is refused.
inline constexpr int kMetricCountsMax = 4096;

// By v1::Reduction; NaN where it is not defined: no positives or no negatives for AUC, a reduction
// that this build does not know.
double Reduced(const v1::NamedSum& sum, double examples);

struct EvaluationResult {
  std::map<std::string, double> metrics;       // By name, `loss` among them; NaN: not defined.
  std::map<std::string, std::int64_t> counts;  // Of an evaluation that counts.

  void Fill(v1::JobSnapshot* snapshot) const;
  void Read(const v1::JobSnapshot& snapshot);
};

class EvaluationSum {
 public:
  // Nothing that a worker reports overflows: integers wrap.
  void Add(const v1::ClosureMetrics& metrics);
  // `counts_only`: integers are counts, and there is no loss. Nothing is measured without examples.
  EvaluationResult Result(bool counts_only) const;

 private:
  std::uint64_t examples_ = 0;
  double loss_sum_ = 0;
  std::map<std::string, v1::NamedSum> sums_;
};

}  // namespace evergrad::coordinator

// One number of a metric's sum over an evaluation. Pure.
#pragma once

#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

// Counts of one metric of one closure; a Done with more is refused.
inline constexpr int kMetricCountsMax = 4096;

// By v1::Reduction; NaN where it is not defined: no positives or no negatives for AUC, a reduction
// that this build does not know.
double Reduced(const v1::NamedSum& sum, double examples);

}  // namespace evergrad::coordinator

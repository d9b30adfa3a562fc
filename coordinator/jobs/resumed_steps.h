// Steps of epochs that former jobs trained, which may have had another batch size. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "evergrad/v1/snapshot.pb.h"

namespace evergrad::coordinator {

// The metric under which a manifest keeps the steps of a trained epoch (scope "train").
inline constexpr char kStepsMetric[] = "steps";

// The steps of epochs 1, 2, …, as the manifest says them. Where it does not (an older build wrote
// it, or what it says is no whole number): as its own plan has them, and under the same plan as in
// `counted`, where this job counted them itself.
std::vector<std::uint64_t> StepsOfEpochs(const v1::Manifest& manifest, bool same_plan,
                                         std::vector<std::uint64_t> counted);

}  // namespace evergrad::coordinator

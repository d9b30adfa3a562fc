#include "coordinator/jobs/resumed_steps.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/client/protocol.h"
#include "common/plan/plan.h"

namespace evergrad::coordinator {

std::vector<std::uint64_t> StepsOfEpochs(const v1::Manifest& manifest, bool same_plan,
                                         std::vector<std::uint64_t> counted) {
  std::vector<std::uint64_t> steps = std::move(counted);
  const auto plan = plan::Plan::Create(client::PlanSpecOf(manifest.plan()));
  if (!same_plan && plan.ok() && plan->spec().epochs > 0)
    std::fill(steps.begin(), steps.end(), plan->steps() / plan->spec().epochs);
  for (const v1::FinishedMetric& metric : manifest.metrics()) {
    if (metric.scope() != "train" || metric.name() != kStepsMetric || metric.epoch() == 0 ||
        metric.epoch() > steps.size())
      continue;
    // Whole numbers up to 2^53 stand in a double.
    if (metric.value() >= 1 && metric.value() < 0x1p53 &&
        std::floor(metric.value()) == metric.value())
      steps[metric.epoch() - 1] = static_cast<std::uint64_t>(metric.value());
  }
  return steps;
}

}  // namespace evergrad::coordinator

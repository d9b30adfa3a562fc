#include "coordinator/jobs/step_lines.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "coordinator/jobs/json_lines.h"

namespace evergrad::coordinator {

std::vector<TrainedStep> StepsOf(
    const google::protobuf::RepeatedPtrField<v1::StepRecord>& records) {
  std::vector<TrainedStep> steps;
  steps.reserve(static_cast<std::size_t>(records.size()));
  for (const v1::StepRecord& record : records)
    steps.push_back({record.global_step(), record.loss(), record.examples()});
  return steps;
}

void StepLines::Write(ClosureId closure, const plan::ClosureRange& range, std::int64_t steps_before,
                      const std::vector<TrainedStep>& steps, MonoTime now, LineSink* lines) {
  if (steps.empty()) return;
  if (lines != nullptr) {
    const double seconds = std::chrono::duration<double>(now - tokens_at_).count();
    tokens_ = std::min<double>(options_.burst, tokens_ + seconds * options_.per_second);
    tokens_at_ = now;
  }
  for (const TrainedStep& step : steps) {
    if (step.global_step < range.first_global_step ||
        step.global_step >= range.first_global_step + range.steps)
      continue;
    const std::uint64_t shown = step.global_step + static_cast<std::uint64_t>(steps_before);
    if (std::isfinite(step.loss)) curve_.Add(static_cast<double>(shown), step.loss);
    if (lines == nullptr) continue;
    if (tokens_ < 1) {
      ++dropped_;
      continue;
    }
    tokens_ -= 1;
    const bool kept = lines->Add(Dump(Json{{"kind", "step"},
                                           {"step", shown},
                                           {"epoch", range.epoch + 1},
                                           {"closure", closure.value()},
                                           {"loss", Real(step.loss)},
                                           {"examples", step.examples}}),
                                 true);
    if (!kept) ++dropped_;
  }
}

}  // namespace evergrad::coordinator

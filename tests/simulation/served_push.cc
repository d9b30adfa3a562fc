#include "tests/simulation/served_push.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "tests/mutants/mutant.h"

namespace evergrad::simulation {

using mutants::IsActive;
using mutants::Mutant;

PushOfCall::PushOfCall(WalkContext& walk, const Call& call) {
  const ShardModel& model = walk.models[call.p];
  const std::uint64_t c = call.closure.value();
  beyond_budget_ = walk.faults() && model.slot() && walk.random.Chance(0.05);
  skip_ = !beyond_budget_ && ShardModel::Skips(c, call.update, call.attempt);
  model.Gradient(c, call.update, call.attempt, gradient_);
  push.epoch = call.epoch;
  push.closure = call.closure;
  push.update = UpdateIndex(call.update);
  push.attempt = call.attempt;
  const bool applies_skip = skip_ && IsActive(Mutant::kSkipApplies);
  if (applies_skip) std::fill(std::begin(gradient_), std::end(gradient_), 0.0f);
  if (skip_) push.skip_reason = "overflow";
  if (skip_ && !applies_skip) {
    push.kind = ps_server::UpdateKind::kSkip;
  } else {
    model.FillPush(c, call.update, std::span(gradient_, model.gradient_floats(c, call.update)),
                   &push);
  }
  if (beyond_budget_) {
    section_ = model.BeyondBudget(c, call.update, &more_);
    push.rows = section_.ids.size();
    push.rows_of = section_.of();
    push.payload = std::as_bytes(std::span(more_));
  }
  if (walk.faults() && walk.random.Chance(0.02)) push.defect = "a byte changed on the way";
}

}  // namespace evergrad::simulation

#include "common/plan/plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/checked_math.h"
#include "common/base/status.h"
#include "common/random/philox.h"

namespace evergrad::plan {
namespace {

std::uint64_t CeilDiv(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace

absl::StatusOr<Plan> Plan::Create(const PlanSpec& spec) {
  const auto at_least_one = [](absl::string_view name, std::uint64_t value) {
    return value >= 1 ? absl::OkStatus()
                      : absl::InvalidArgumentError(
                            absl::StrCat("plan value must be at least 1: ", name, "=", value));
  };
  EG_RETURN_IF_ERROR(at_least_one("train_examples", spec.train_examples));
  EG_RETURN_IF_ERROR(at_least_one("batch_size", spec.batch_size));
  EG_RETURN_IF_ERROR(at_least_one("steps_per_closure", spec.steps_per_closure));
  EG_RETURN_IF_ERROR(at_least_one("epochs", spec.epochs));
  EG_RETURN_IF_ERROR(at_least_one("eval_batch_size", spec.eval_batch_size));
  EG_RETURN_IF_ERROR(at_least_one("eval_steps_per_closure", spec.eval_steps_per_closure));
  for (std::uint32_t steps : {spec.steps_per_closure, spec.eval_steps_per_closure}) {
    if (steps > kUpdatesPerClosureMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("too many steps per closure: steps_per_closure=", steps,
                       " limit=", kUpdatesPerClosureMax));
    }
  }
  Plan plan;
  plan.spec_ = spec;
  plan.steps_per_epoch_ = CeilDiv(spec.train_examples, spec.batch_size);
  plan.closures_per_epoch_ = CeilDiv(plan.steps_per_epoch_, spec.steps_per_closure);
  // Positions are computed as step * batch_size and steps * epochs. Each of the two products, plus
  // one batch, must fit into 64 bits.
  const auto examples = CheckedMul(spec.train_examples, spec.epochs);
  const auto padded =
      CheckedAdd(spec.train_examples, std::uint64_t{spec.batch_size} * spec.steps_per_closure);
  const auto eval_padded = CheckedAdd(
      spec.eval_examples, std::uint64_t{spec.eval_batch_size} * spec.eval_steps_per_closure);
  if (!examples || !padded || !eval_padded) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the plan has more examples than 64 bits can count: train_examples=", spec.train_examples,
        " epochs=", spec.epochs, " eval_examples=", spec.eval_examples));
  }
  return plan;
}

ClosureRange Plan::Closure(ClosureId c) const {
  EG_CHECK_MSG(c.value() < closures(), c.ToString());
  const std::uint64_t epoch = c.value() / closures_per_epoch_;
  const std::uint64_t first_step = c.value() % closures_per_epoch_ * spec_.steps_per_closure;
  const std::uint64_t last_step = std::min(first_step + spec_.steps_per_closure, steps_per_epoch_);
  ClosureRange range;
  range.epoch = static_cast<std::uint32_t>(epoch);
  range.begin = first_step * spec_.batch_size;
  range.end = std::min(last_step * spec_.batch_size, spec_.train_examples);
  range.steps = static_cast<std::uint32_t>(last_step - first_step);
  range.first_global_step = epoch * steps_per_epoch_ + first_step;
  return range;
}

std::vector<std::uint64_t> Plan::Batch(ClosureId c, UpdateIndex u) const {
  const ClosureRange range = Closure(c);
  EG_CHECK_MSG(u.value() < range.steps, absl::StrCat("closure=", c.value(), " update=", u.value()));
  const std::uint64_t begin = range.begin + std::uint64_t{u.value()} * spec_.batch_size;
  const std::uint64_t end = std::min(begin + spec_.batch_size, range.end);
  std::vector<std::uint64_t> examples;
  examples.reserve(end - begin);
  if (!spec_.shuffle) {
    for (std::uint64_t i = begin; i < end; ++i) examples.push_back(i);
    return examples;
  }
  const random::Permutation order(
      spec_.train_examples, random::KeyOf(spec_.shuffle_seed, absl::StrCat("epoch/", range.epoch)));
  for (std::uint64_t i = begin; i < end; ++i) examples.push_back(order(i));
  return examples;
}

std::uint64_t Plan::eval_closures() const {
  return CeilDiv(spec_.eval_examples,
                 std::uint64_t{spec_.eval_batch_size} * spec_.eval_steps_per_closure);
}

ClosureRange Plan::EvalClosure(std::uint64_t n) const {
  EG_CHECK_MSG(n < eval_closures(), absl::StrCat(n));
  const std::uint64_t examples =
      std::uint64_t{spec_.eval_batch_size} * spec_.eval_steps_per_closure;
  ClosureRange range;
  range.begin = n * examples;
  range.end = std::min(range.begin + examples, spec_.eval_examples);
  range.steps = static_cast<std::uint32_t>(CeilDiv(range.end - range.begin, spec_.eval_batch_size));
  return range;
}

}  // namespace evergrad::plan

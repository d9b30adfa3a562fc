#include "worker/runner/function_run.h"

namespace evergrad::worker {

FunctionRun::FunctionRun(const Environment& environment, Work work, const Measures& measures,
                         const sdk::Registry* functions, bool skip_not_finite)
    // Until the last step is known, the number of steps is one more than the limit.
    : UpdateRun(environment, std::move(work), measures, kUpdatesPerClosureMax + 1),
      functions_(functions),
      skip_not_finite_(skip_not_finite) {}

void FunctionRun::Start() {
  static const sdk::Registry kNoFunctions;
  const FunctionWork wanted = work_.function == nullptr ? FunctionWork{} : *work_.function;
  auto call = sdk::FunctionCall::Make(functions_ == nullptr ? kNoFunctions : *functions_,
                                      wanted.function, wanted.arguments, work_.closure.value(),
                                      env_.job->seed(), cancelled_);
  if (!call.ok()) return env_.owner->Fail(call.status());
  call_ = *std::move(call);
  UpdateRun::Start();
}

void FunctionRun::Cancel() {
  cancelled_->store(true);
  if (call_) env_.compute->Post([call = std::move(call_)] {});
}

void FunctionRun::ComputeStep() {
  auto pulled = std::make_shared<std::vector<PulledShard>>(env_.job->cache()->Take());
  Compute(
      [compute = env_.job->compute(), layout = env_.job->layout(), pulled,
       call = call_]() -> absl::StatusOr<ComputeJob::FunctionStep> {
        EG_RETURN_IF_ERROR(compute->UseLayout(layout));
        compute->Absorb(std::move(*pulled));
        return compute->RunFunction(*call);
      },
      [this](absl::StatusOr<ComputeJob::FunctionStep> step) { OnStep(std::move(step)); });
}

absl::Status FunctionRun::AboutFunction(const absl::Status& status) const {
  const std::string name = work_.function == nullptr ? "" : work_.function->function;
  const absl::Status named(status.code(), absl::StrCat(status.message(), " function=", name));
  return AboutStep(BlameOf(status) == Blame::kUser ? UserError(named) : named, work_.closure,
                   next_step());
}

absl::StatusOr<std::string> FunctionRun::CheckFinite(const ComputeJob::FunctionStep& step) {
  if (step.finite && step.overflowed.empty()) return "";
  const absl::Status error = AboutFunction(UserError(absl::OutOfRangeError(
      step.finite ? absl::StrCat("gradient exceeds the range of its wire type: ", step.overflowed)
                  : "gradient is not finite (NaN or Inf)")));
  if (!skip_not_finite_) return error;
  env_.logger->Warning(absl::StrCat("update skipped: ", error.message()), About());
  measures_.metrics->skips.Add();
  return step.finite ? "overflow" : "nan";
}

void FunctionRun::OnStep(absl::StatusOr<ComputeJob::FunctionStep> step) {
  if (!step.ok()) return env_.owner->Fail(AboutFunction(step.status()));
  const sdk::FunctionCall::Outcome& outcome = step->outcome;
  if (outcome.last) result_ = std::move(step->result);
  if (!outcome.stepped) {
    SetSteps(next_step());
    return EndStep();
  }
  if (outcome.last) SetSteps(next_step() + 1);
  absl::StatusOr<std::string> skip_reason = CheckFinite(*step);
  if (!skip_reason.ok()) return env_.owner->Fail(skip_reason.status());
  CountStep(outcome.examples);
  Update update;
  update.skip_reason = *std::move(skip_reason);
  update.gradients = std::move(step->gradients);
  for (const std::uint32_t variable : outcome.pushed) {
    for (const ShardId shard : env_.job->layout()->variables()[variable].shards) {
      if (IsTarget(shard)) update.dense.push_back(shard);
    }
  }
  PushUpdate(std::move(update));
}

void FunctionRun::FillDone(v1::Done* done) {
  *done->mutable_metrics() = std::move(metrics_);
  done->set_result(std::move(result_));
}

}  // namespace evergrad::worker

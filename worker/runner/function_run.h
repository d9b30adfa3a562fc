// A closure of a job of the type `functions`. Each step is one call of the user's function, and
// pushes the gradients that the function pushed. The number of steps is known only after the last
// step.
//
// The FunctionCall is used and destroyed on the compute executor, because it holds the user's
// objects.
#pragma once

#include "worker/runner/update_run.h"

namespace evergrad::worker {

class FunctionRun final : public UpdateRun {
 public:
  // `functions` outlives the run; it may be null if no function is registered.
  FunctionRun(const Environment& environment, Work work, const Measures& measures,
              const sdk::Registry* functions, bool skip_not_finite);

  void Start() override;
  void Cancel() override;
  void FillDone(v1::Done* done) override;

 private:
  void ComputeStep() override;
  // The values of the first step must not be older than the closure, so they are not pulled with
  // the last push of the previous closure.
  bool MayPullAhead() const override { return false; }
  void OnStep(absl::StatusOr<ComputeJob::FunctionStep> step);
  // Returns the reason to skip the update, or "" if the update must be pushed. If the worker must
  // not skip such updates, returns a user error.
  absl::StatusOr<std::string> CheckFinite(const ComputeJob::FunctionStep& step);
  absl::Status AboutFunction(const absl::Status& status) const;

  const sdk::Registry* const functions_;
  const bool skip_not_finite_;
  std::shared_ptr<sdk::FunctionCall> call_;  // shared with the compute executor
  // Cancel sets this flag, which `call_` shares and the user's code can read.
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
  std::string result_;
};

}  // namespace evergrad::worker

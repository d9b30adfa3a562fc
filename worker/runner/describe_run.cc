#include "worker/runner/describe_run.h"

namespace evergrad::worker {

void DescribeRun::Start() {
  env_.logger->Info("this worker describes the job", About());
  Compute(std::move(describe_), [this](absl::StatusOr<v1::DescribeResult> result) {
    if (!result.ok()) return env_.owner->Fail(result.status());
    description_ = *std::move(result);
    Finish();
  });
}

}  // namespace evergrad::worker

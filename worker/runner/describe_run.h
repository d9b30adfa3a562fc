// Describes a job to the coordinator, for the plan (examples, variables, fingerprint). The run is
// one computation, without an exchange.
#pragma once

#include <functional>

#include "worker/runner/attempt_run.h"

namespace evergrad::worker {

class DescribeRun final : public AttemptRun {
 public:
  // `describe` is called once, on the compute executor.
  using Describe = std::function<absl::StatusOr<v1::DescribeResult>()>;
  DescribeRun(const Environment& environment, Work work, Describe describe)
      : AttemptRun(environment, std::move(work)), describe_(std::move(describe)) {}

  void Start() override;
  void FillDone(v1::Done* done) override { *done->mutable_describe() = std::move(description_); }

 private:
  Describe describe_;
  v1::DescribeResult description_;
};

}  // namespace evergrad::worker

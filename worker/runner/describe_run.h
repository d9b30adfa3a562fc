// Sends the coordinator the description from which it makes the plan of a job: number of examples,
// variables, fingerprint of the data. The run is one computation, without an exchange.
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

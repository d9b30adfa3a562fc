// Describes a job to the coordinator, for the plan: its examples, variables and fingerprint. The
// run is one computation, without an exchange.
#pragma once

#include "worker/runner/attempt_run.h"

namespace evergrad::worker {

class DescribeRun final : public AttemptRun {
 public:
  using AttemptRun::AttemptRun;

  void Start() override;
  void FillDone(v1::Done* done) override { *done->mutable_describe() = std::move(description_); }

 private:
  v1::DescribeResult description_;
};

}  // namespace evergrad::worker

// Evaluates the model on the examples of one evaluation closure, batch by batch, with the values of
// one pull.
#pragma once

#include "worker/runner/attempt_run.h"
#include "worker/runner/batch_feed.h"

namespace evergrad::worker {

class EvaluationRun final : public AttemptRun {
 public:
  // `streams` outlives the run, and the stream of `work` is open.
  EvaluationRun(const Environment& environment, Work work, BatchStreams* streams)
      : AttemptRun(environment, std::move(work)), streams_(streams) {}

  void Start() override;
  void FillDone(v1::Done* done) override;

 private:
  std::uint32_t Progressed() const override { return next_step_; }
  void OnExchange() override;
  void EvaluateBatch();
  void EndStep(std::int64_t examples, const StepResult& result);

  BatchStreams* const streams_;
  std::shared_ptr<BatchFeed> feed_;  // shared with its own callbacks
  std::uint32_t steps_ = 0, next_step_ = 0;
  bool computing_ = false;
  v1::ClosureMetrics metrics_;
  std::vector<MetricSum> measured_;  // in the order of the model's metrics
};

}  // namespace evergrad::worker

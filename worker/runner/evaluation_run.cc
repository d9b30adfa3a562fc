#include "worker/runner/evaluation_run.h"

namespace evergrad::worker {

void EvaluationRun::Start() {
  steps_ = env_.job->EvalRange(work_).steps;
  OpenExchange();
  feed_ = std::make_shared<BatchFeed>(
      BatchFeed::Environment{env_.control, env_.compute, streams_, env_.job, exchange_.get()},
      work_, IfRunning([this](const absl::Status& status) {
        if (!status.ok()) return env_.owner->Fail(status);
        OnExchange();
      }));
  OnExchange();
}

void EvaluationRun::OnExchange() {
  if (finishing() || computing_) return;
  if (next_step_ == steps_) return Finish();
  if (!feed_->has_batch()) return feed_->Ask();
  if (exchange_->PullsDone(1) && feed_->RowsDone()) EvaluateBatch();
}

void EvaluationRun::EvaluateBatch() {
  computing_ = true;
  env_.job->step_ended.reset();
  auto pulled = std::make_shared<std::vector<PulledShard>>(env_.job->cache()->Take());
  const BatchFeed::Taken taken = feed_->Take();
  if (next_step_ + 1 < steps_) feed_->Ask();
  Compute(
      [compute = env_.job->compute(), layout = env_.job->layout(), pulled, taken,
       next = feed_->next()]() -> absl::StatusOr<StepResult> {
        EG_RETURN_IF_ERROR(compute->UseLayout(layout));
        compute->Absorb(std::move(*pulled));
        return compute->Evaluate(*taken.batch, taken.rows.get(), next.get());
      },
      [this, examples = taken.batch->size](const absl::StatusOr<StepResult>& result) {
        if (!result.ok())
          return env_.owner->FailCompute(AboutStep(result.status(), work_.closure, next_step_));
        EndStep(examples, *result);
      });
}

void EvaluationRun::EndStep(std::int64_t examples, const StepResult& result) {
  metrics_.set_examples(metrics_.examples() + static_cast<std::uint64_t>(examples));
  metrics_.set_loss_sum(metrics_.loss_sum() + result.loss_sum);
  AddMetrics(result.metrics, &measured_);
  metrics_.set_steps(++next_step_);
  if (next_step_ < steps_) {
    computing_ = false;
    return OnExchange();
  }
  PassFailpoint("worker.evaluate", [this] {
    computing_ = false;
    OnExchange();
  });
}

void EvaluationRun::FillDone(v1::Done* done) {
  FillSums(env_.job->spec()->model.metrics, measured_, /*with_counts=*/true, &metrics_);
  *done->mutable_metrics() = std::move(metrics_);
}

}  // namespace evergrad::worker

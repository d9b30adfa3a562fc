#include "worker/counting/counting_kind.h"

#include "worker/counting/counting.h"
#include "worker/runner/describe_run.h"

namespace evergrad::worker {
namespace {

void AddCount(std::int64_t count, v1::ClosureMetrics* metrics) {
  v1::NamedSum& sum = *metrics->add_sums();
  sum.set_name("count");
  sum.set_is_integer(true);
  sum.set_count(count);
}

class CountingTraining final : public UpdateRun {
 public:
  CountingTraining(const Environment& environment, const Work& work, const Measures& measures)
      : UpdateRun(environment, work, measures,
                  environment.job->plan()->Closure(work.closure).steps) {}

  void FillDone(v1::Done* done) override {
    AddCount(0, &metrics_);
    *done->mutable_metrics() = std::move(metrics_);
    FillTouchedLess(done);
  }

 private:
  void ComputeStep() override {
    PullForSecondStep();
    const std::uint32_t step_ms = env_.job->spec()->counting.step_ms;
    if (step_ms == 0) return Count();
    env_.control->PostAfter(std::chrono::milliseconds(step_ms), IfRunning([this] { Count(); }));
  }

  // Pulled values leave the cache only in the call that also starts the computation. If the run
  // ends earlier, the values stay in the cache. Values that left the cache and were dropped would
  // be missing later, because the server answers the next pull with `unchanged`.
  void Count() {
    const UpdateIndex update(next_step());
    std::vector<std::uint64_t> examples = env_.job->plan()->Batch(work_.closure, update);
    absl::StatusOr<std::vector<ShardId>> touched = CountingTouch(*env_.job->layout(), examples);
    if (!touched.ok()) return env_.owner->Fail(touched.status());
    auto pulled = std::make_shared<std::vector<PulledShard>>(env_.job->cache()->Take());
    Compute(
        [compute = env_.job->compute(), layout = env_.job->layout(), pulled, examples,
         closure = work_.closure.value(), update = update.value(),
         table_ids = env_.job->spec()->counting.table_ids]() -> absl::StatusOr<CountedStep> {
          EG_RETURN_IF_ERROR(compute->UseLayout(layout));
          compute->Absorb(std::move(*pulled));
          EG_RETURN_IF_ERROR(compute->CheckWeights());
          return CountStepOf(layout, examples, closure, update, table_ids);
        },
        [this, dense = Targets(*std::move(touched)),
         size = examples.size()](absl::StatusOr<CountedStep> step) {
          if (!step.ok())
            return env_.owner->FailCompute(AboutStep(step.status(), work_.closure, next_step()));
          Update counted;
          counted.dense = dense;
          counted.gradients = std::move(step->gradients);
          if (step->slots) AddGradientsOfRows(step->slots, step->row_gradients, &counted);
          RecordStep(size, /*loss_sum=*/0);
          PushUpdate(std::move(counted));
        });
  }
};

class CountingEvaluation final : public AttemptRun {
 public:
  using AttemptRun::AttemptRun;

  void Start() override {
    OpenExchange();
    OnExchange();
  }
  void FillDone(v1::Done* done) override {
    AddCount(count_, &metrics_);
    *done->mutable_metrics() = std::move(metrics_);
  }

 private:
  std::uint32_t Progressed() const override { return metrics_.steps(); }

  void OnExchange() override {
    if (computing_ || !exchange_->PullsDone(1)) return;
    computing_ = true;
    auto pulled = std::make_shared<std::vector<PulledShard>>(env_.job->cache()->Take());
    const plan::ClosureRange range = env_.job->EvalRange(work_);
    Compute(
        [compute = env_.job->compute(), layout = env_.job->layout(), pulled,
         range]() -> absl::StatusOr<std::int64_t> {
          EG_RETURN_IF_ERROR(compute->UseLayout(layout));
          compute->Absorb(std::move(*pulled));
          std::vector<tensor::AlignedBuffer> widened;
          EG_ASSIGN_OR_RETURN(const auto weights, compute->Weights(&widened));
          return CountingSum(*layout, weights, range.begin, range.end);
        },
        [this, examples = range.end - range.begin](absl::StatusOr<std::int64_t> count) {
          if (!count.ok()) return env_.owner->Fail(count.status());
          count_ = *count;
          metrics_.set_examples(examples);
          metrics_.set_steps(1);
          PassFailpoint("worker.evaluate", [this] { Finish(); });
        });
  }

  bool computing_ = false;  // stays true after the computation has finished
  std::int64_t count_ = 0;
  v1::ClosureMetrics metrics_;
};

class CountingKind final : public JobKind {
 public:
  absl::string_view type() const override { return "counting"; }

  std::shared_ptr<AttemptRun> MakeRun(const Parts& parts, const Work& work) const override {
    if (work.kind == WorkKind::kTrain)
      return std::make_shared<CountingTraining>(parts.run, work, parts.measures);
    if (work.kind == WorkKind::kEvaluate)
      return std::make_shared<CountingEvaluation>(parts.run, work);
    return std::make_shared<DescribeRun>(
        parts.run, work, [spec = *parts.run.job->spec(), seed = parts.run.job->seed()] {
          return absl::StatusOr<v1::DescribeResult>(DescribeCounting(spec, seed));
        });
  }
};

}  // namespace

const JobKind& CountingJobs() {
  static const CountingKind kind;
  return kind;
}

}  // namespace evergrad::worker

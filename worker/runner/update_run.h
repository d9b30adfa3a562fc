// The common part of all training closures, independent of how steps are computed: values are
// pulled, a step is computed, its gradients are pushed, and the closure is done once every push is
// settled. The derived run computes the steps: training_run, function_run, counting_run.
//
//   OnExchange ─▶ BeginStep ─▶ ComputeStep ──▶ (compute executor) ──▶ PushStep ─▶ OnExchange …
//   all on the control executor, but for ──────┘                  └─ one hop, back to it
//
// Failpoints lie between: worker.step, worker.before_push, worker.after_push. Without one that
// delays, the continuation behind a failpoint runs in the same turn.
//
// With `pipeline` 1 the values of step t+1 are pulled with the push of step t-1, so that they come
// while step t is computed.
#pragma once

#include "worker/runner/attempt_run.h"
#include "worker/runner/step_log.h"

namespace evergrad::worker {

class UpdateRun : public AttemptRun {
 public:
  // All outlive the run.
  struct Measures {
    RunnerMetrics* metrics = nullptr;
    StepLog* steps = nullptr;
  };

  void Start() override;
  void OnReported() override;

 protected:
  UpdateRun(const Environment& environment, Work work, const Measures& measures,
            std::uint32_t steps)
      : AttemptRun(environment, std::move(work)), measures_(measures), steps_(steps) {}

  // The update that one step pushes: to dense shards, and to slots of tables.
  struct Update {
    std::vector<ShardId> dense;
    std::shared_ptr<GradientBuffer> gradients;
    std::shared_ptr<const SlotRows> slots;  // null without tables
    std::shared_ptr<const tensor::AlignedBuffer> row_gradients;
    std::vector<const SlotRows::Part*> parts;  // of `slots`
    std::string skip_reason;                   // not "": the step is skipped, and pushes no values
  };

  // Whether the next step has its input beside the pulled values. Otherwise asks for the input, and
  // OnExchange is called once it is there.
  virtual bool InputReady() { return true; }
  // Computes step next_step(), and then pushes it with PushUpdate. The attempt may also end, or
  // EndSteps.
  virtual void ComputeStep() = 0;
  // Whether the last push may pull for the closure behind this one.
  virtual bool MayPullAhead() const { return env_.job->layout()->slots() == 0; }

  std::uint32_t Progressed() const final { return next_step_; }
  void OnExchange() final;

  // Passes worker.before_push and pushes.
  void PushUpdate(Update update);
  // The closure has no other steps than the first `steps`.
  void SetSteps(std::uint32_t steps) { steps_ = steps; }
  // The step is over: pushed, or it was none.
  void EndStep();
  // With `pipeline` 1 the second pull leaves beside the first step.
  void PullForSecondStep();
  // A training closure waits behind this one.
  bool AnotherQueued() const;

  bool IsTarget(ShardId shard) const { return work_.all_targets || work_.targets.contains(shard); }
  // Those of `shards` that are targets of this attempt.
  std::vector<ShardId> Targets(std::vector<ShardId> shards) const;
  void AddGradientsOfRows(const std::shared_ptr<const SlotRows>& slots,
                          const std::vector<tensor::AlignedBuffer>& gradients,
                          Update* update) const;

  // Counts a step; RecordStep also its loss, for the next heartbeat and for Done.
  void CountStep(std::uint64_t examples);
  void RecordStep(std::uint64_t examples, double loss_sum);
  // The shards that fewer updates touched than the closure has, if it was granted with all targets
  // [LEDGER 38].
  void FillTouchedLess(v1::Done* done) const;

  std::uint32_t steps() const { return steps_; }
  std::uint32_t next_step() const { return next_step_; }
  std::uint64_t pipeline() const { return env_.job->spec()->strategy.pipeline; }
  // Step `step` is still computed.
  bool Computes(std::uint32_t step) const { return computing_ && next_step_ == step; }

  const Measures measures_;
  v1::ClosureMetrics metrics_;

 private:
  bool CountSettledSteps();
  void BeginStep();
  void PushStep(const Update& update);
  std::vector<Exchange::Gradient> GradientsOf(const Update& update) const;

  std::uint32_t steps_;
  std::uint32_t next_step_ = 0;             // steps computed so far
  std::uint32_t settled_steps_ = 0;         // settled, and past worker.after_push
  bool computing_ = false;                  // a step is computed, or is on its way to be pushed
  bool paused_ = false;                     // worker.after_push delays
  std::optional<MapVersion> pulled_ahead_;  // the map under which the last push also pulled
};

}  // namespace evergrad::worker

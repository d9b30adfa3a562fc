// The common part of all training closures, independent of how steps are computed: values are
// pulled, a step is computed, its gradients are pushed, and the closure is done once every push is
// settled. The derived class computes the steps: training_run, function_run, counting_run.
//
//   OnExchange ─▶ BeginStep ─▶ ComputeStep ──▶ (compute executor) ──▶ PushStep ─▶ OnExchange …
//   all on the control executor, but for ──────┘                  └─ one hop, back to it
//
// Failpoints between them: worker.step, worker.before_push, worker.after_push. Without a delay, the
// continuation after a failpoint runs in the same turn.
//
// With `pipeline` 1 the values of step t+1 are pulled with the push of step t-1, so that they
// arrive while step t is computed.
#pragma once

#include "worker/runner/attempt_run.h"
#include "worker/runner/step_log.h"

namespace evergrad::worker {

class UpdateRun : public AttemptRun {
 public:
  // All objects outlive the run.
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

  // The update of one step: to dense shards, and to slots of tables.
  struct Update {
    std::vector<ShardId> dense;
    std::shared_ptr<GradientBuffer> gradients;
    std::shared_ptr<const SlotRows> slots;  // null without tables
    std::shared_ptr<const tensor::AlignedBuffer> row_gradients;
    std::vector<const SlotRows::Part*> parts;  // of `slots`
    std::string skip_reason;                   // not "": the step is skipped, and pushes no values
  };

  // Returns whether the next step has its input besides the pulled values. Otherwise requests the
  // input, and OnExchange is called once it has arrived.
  virtual bool InputReady() { return true; }
  // Computes step next_step(), and then pushes it with PushUpdate. The attempt may also end, or
  // EndSteps.
  virtual void ComputeStep() = 0;
  // Whether the last push may pull for the next closure.
  virtual bool MayPullAhead() const { return env_.job->layout()->slots() == 0; }

  std::uint32_t Progressed() const final { return next_step_; }
  void OnExchange() final;

  // Passes worker.before_push and pushes.
  void PushUpdate(Update update);
  // The closure has only `steps` steps.
  void SetSteps(std::uint32_t steps) { steps_ = steps; }
  // The step is over: pushed, or empty.
  void EndStep();
  // With `pipeline` 1 the second pull is sent during the first step.
  void PullForSecondStep();
  // Returns whether another training closure is queued.
  bool AnotherQueued() const;

  bool IsTarget(ShardId shard) const { return work_.all_targets || work_.targets.contains(shard); }
  // The `shards` that are targets of this attempt.
  std::vector<ShardId> Targets(std::vector<ShardId> shards) const;
  void AddGradientsOfRows(const std::shared_ptr<const SlotRows>& slots,
                          const std::vector<tensor::AlignedBuffer>& gradients,
                          Update* update) const;

  // CountStep counts a step; RecordStep also records its loss, for the next heartbeat and for Done.
  void CountStep(std::uint64_t examples);
  void RecordStep(std::uint64_t examples, double loss_sum);
  // If all shards are targets, lists the shards that fewer updates touched than the closure has
  // [LEDGER 38].
  void FillTouchedLess(v1::Done* done) const;

  std::uint32_t steps() const { return steps_; }
  std::uint32_t next_step() const { return next_step_; }
  std::uint64_t pipeline() const { return env_.job->spec()->strategy.pipeline; }
  // Step `step` is still being computed.
  bool Computes(std::uint32_t step) const { return computing_ && next_step_ == step; }

  const Measures measures_;
  v1::ClosureMetrics metrics_;

 private:
  bool CountSettledSteps();
  void BeginStep();
  void PushStep(const Update& update);
  std::vector<Exchange::Gradient> GradientsOf(const Update& update) const;

  std::uint32_t steps_;
  std::uint32_t next_step_ = 0;      // steps computed so far
  std::uint32_t settled_steps_ = 0;  // settled steps, past worker.after_push
  bool computing_ = false;           // a step is being computed, or its push is being prepared
  bool paused_ = false;              // worker.after_push delays
  std::optional<MapVersion> pulled_ahead_;  // the map under which the last push also pulled
};

}  // namespace evergrad::worker

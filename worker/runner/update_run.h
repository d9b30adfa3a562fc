// The common part of all training closures, independent of how steps are computed. Values are
// pulled, a step is computed, its gradients are pushed, and the closure is done once every push is
// settled. The derived classes compute the steps, for example training_run and function_run.
//
//   OnExchange ─▶ BeginStep ─▶ ComputeStep ──▶ (compute executor) ──▶ PushStep ─▶ OnExchange …
//   all on the control executor, except ───────┘                  └─ one hop, back to it
//
// The failpoints between these calls are worker.step, worker.before_push and worker.after_push.
// Without a delay, the continuation after a failpoint runs in the same turn.
//
// With `strategy.pipeline: 1` the values of step t+1 are pulled with the push of step t-1, so that
// they arrive while step t is computed.
#pragma once

#include <deque>

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

  // The update of one step, to dense shards and to slots of tables.
  struct Update {
    std::vector<ShardId> dense;
    std::shared_ptr<GradientBuffer> gradients;
    std::shared_ptr<const SlotRows> slots;  // null without tables
    std::shared_ptr<const tensor::AlignedBuffer> row_gradients;
    std::vector<const SlotRows::OfShard*> parts;  // parts of `slots`
    std::string skip_reason;  // if not "", the step is skipped and pushes no values
  };

  // Returns whether the next step has its input, apart from the pulled values. If the input is
  // missing, the call requests it, and OnExchange follows once it has arrived.
  virtual bool InputReady() { return true; }
  // Computes step next_step() and then pushes it with PushUpdate. The implementation may also end
  // the attempt or call EndSteps.
  virtual void ComputeStep() = 0;
  // Returns whether the last push may also pull for the next closure.
  virtual bool MayPullAhead() const { return env_.job->layout()->slots() == 0; }

  std::uint32_t Progressed() const final { return next_step_; }
  void OnExchange() final;

  // Passes the failpoint worker.before_push, then pushes.
  void PushUpdate(Update update);
  // Declares that the closure has only `steps` steps.
  void SetSteps(std::uint32_t steps) { steps_ = steps; }
  // Ends the step, which was pushed or is empty.
  void EndStep();
  // With `pipeline` 1, sends the second pull during the first step.
  void PullForSecondStep();
  // Returns whether another training closure is queued.
  bool AnotherQueued() const;

  bool IsTarget(ShardId shard) const { return work_.all_targets || work_.targets.contains(shard); }
  // Returns the targets of this attempt among `shards`.
  std::vector<ShardId> Targets(std::vector<ShardId> shards) const;
  void AddGradientsOfRows(const std::shared_ptr<const SlotRows>& slots,
                          const std::vector<tensor::AlignedBuffer>& gradients,
                          Update* update) const;

  // Both functions count a step. RecordStep also records its loss for the next heartbeat and for
  // Done.
  void CountStep(std::uint64_t examples);
  void RecordStep(std::uint64_t examples, double loss_sum);
  // If all shards are targets, lists the shards that some updates of the closure did not touch
  // [LEDGER 38].
  void FillTouchedLess(v1::Done* done) const;

  std::uint32_t steps() const { return steps_; }
  std::uint32_t next_step() const { return next_step_; }
  std::uint64_t pipeline() const { return env_.job->spec()->strategy.pipeline; }
  // Returns whether step `step` is still being computed.
  bool Computes(std::uint32_t step) const { return computing_ && next_step_ == step; }

  // Now returns the time. Observe records the time since `since`; without a clock it does nothing.
  MonoTime Now() const { return env_.clock == nullptr ? MonoTime{0} : env_.clock->Now(); }
  void Observe(const metrics::Histogram& seconds, MonoTime since) const;

  const Measures measures_;
  v1::ClosureMetrics metrics_;

 private:
  bool CountSettledSteps();
  void WantPulls(std::uint64_t count);
  void CountPulls();
  void BeginStep();
  void PushStep(const Update& update);
  std::vector<Exchange::Gradient> GradientsOf(const Update& update) const;

  std::uint32_t steps_;
  std::uint32_t next_step_ = 0;      // steps computed so far
  std::uint32_t settled_steps_ = 0;  // settled steps that have passed worker.after_push
  bool computing_ = false;           // a step is being computed, or its push is being prepared
  bool paused_ = false;              // worker.after_push delays the run
  MonoTime begun_at_{0};             // beginning of the step that is being computed
  std::deque<MonoTime> pushed_at_;   // times of the unsettled pushes, at most two
  std::deque<MonoTime> wanted_at_;   // times of the requests of pulls that have not arrived
  std::uint64_t pulls_wanted_ = 0;   // including pulls that have arrived
  std::optional<MapVersion> pulled_ahead_;  // the map under which the last push also pulled
};

}  // namespace evergrad::worker

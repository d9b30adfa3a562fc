// The account of a job's work: the closures that have succeeded, the results of each epoch, and the
// barrier at which training waits for the next evaluation.
//
//   Count ─▶ waits for the closures before it ─▶ folded in closure order ─▶ a row for each epoch
//
// To fold a closure is to add its results to the sums of its epoch. Folding in the order of the
// closures makes sums of floats independent of the speed of the workers. Reading the journal runs
// the same code as the events did.
//
// A barrier is an epoch with an evaluation: at its end no new closure is granted until the
// evaluation has ended. The last epoch is always a barrier. Closures, positions and epochs are
// those of the plan, and epochs are numbered from 1. The next barrier is at the end of epoch
// barrier(). If the barrier has a valid evaluation, evaluated() equals barrier(); otherwise
// evaluated() is lower. Seconds are measured with the monotonic clock. A speed or a loss that was
// not measured is NaN.
//
// No clock, no I/O; the lines of metrics.jsonl go to the sink that the caller passes. Not
// thread-safe: only the control executor calls it. The curve has its own bound; the caller bounds
// the closures that wait for an earlier closure to end (waiting()).
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/base/interval_set.h"
#include "common/plan/plan.h"
#include "common/time/clock.h"
#include "coordinator/dashboard/report.h"
#include "coordinator/jobs/evaluation.h"
#include "coordinator/jobs/json_lines.h"
#include "coordinator/jobs/step_lines.h"
#include "evergrad/v1/api.pb.h"
#include "evergrad/v1/session.pb.h"
#include "evergrad/v1/snapshot.pb.h"

namespace evergrad::v1 {
class JobCounters;
class JobSnapshot;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

class EpochAccount {
 public:
  struct Options {
    // If evaluate_every is 0, only the last epoch is evaluated.
    std::uint64_t epochs = 1, evaluate_every = 0;
    // The job is a counting job: its evaluations yield counts and no loss.
    bool counts_only = false;
    StepLines::Options step_lines = {};
  };
  // The time of an event, and the sink of its lines. `lines` is null while the journal is read,
  // because the journal has these lines already.
  struct Context {
    MonoTime now;
    std::int64_t wall_ms = 0;
    LineSink* lines = nullptr;
  };
  EpochAccount(const Options& options, MonoTime now);

  // --- the plan. It outlives the account and is set before anything is counted.
  void SetPlan(const plan::Plan* plan) { plan_ = plan; }
  void BeginPlan() { barrier_ = NextBarrier(0); }
  std::uint64_t barrier() const { return barrier_; }
  std::uint64_t evaluated() const { return evaluated_; }
  // Returns the number of closures before the barrier.
  std::uint64_t BarrierClosure() const { return barrier_ * plan_->closures_per_epoch(); }
  // Returns the largest number of closures between two barriers.
  std::uint64_t ClosuresBetweenBarriers() const {
    return NextBarrier(0) * plan_->closures_per_epoch();
  }
  bool EvaluationDue() const { return evaluated_ < barrier_ && plan_->eval_closures() > 0; }
  // Passes the barrier. The barrier must be reached and need no further evaluation. Returns true if
  // training continues to the next barrier, false if this was the last one.
  bool PassBarrier(const Context& context);

  // --- closures
  struct Counted {
    std::uint64_t steps = 0, examples = 0;
  };
  // Counts the first success of a closure. Folding skips closures in `dead`, which never succeed.
  // Returns the counted numbers: the steps that the plan has for the closure, and at most as many
  // examples as the plan has for it.
  Counted Count(ClosureId closure, std::uint64_t examples, double loss_sum,
                std::vector<TrainedStep> steps, const IntervalSet& dead, const Context& context);
  // Counts a closure that is in no plan (functions jobs).
  void CountUnplanned(std::uint64_t steps, std::uint64_t examples);
  void StartClock(MonoTime now) { epoch_began_ = now; }  // Called when training begins.
  std::uint64_t succeeded() const { return succeeded_; }
  std::uint64_t steps_done() const { return steps_done_; }
  std::uint64_t examples_done() const { return examples_done_; }
  std::uint64_t folded() const { return folded_; }  // All closures below this number have ended.
  std::uint64_t waiting() const { return waiting_.size(); }
  void ForgetWaiting() { waiting_.clear(); }  // Called when the job has ended.

  // --- evaluation. The time of an evaluation does not count as time of the epoch. An evaluation
  // needs a call of BeginPlan before it, because the evaluation's result is written into the row of
  // an epoch.
  void BeginEvaluation(MonoTime now) { evaluation_began_ = now; }
  void FinishEvaluation(EvaluationResult result, MonoTime now);
  // Marks the newest evaluation as invalid, because values have changed. `under_way` is true if an
  // evaluation is in progress.
  void VoidEvaluation(bool under_way, MonoTime now);
  const EvaluationResult& evaluation() const { return evaluation_; }  // The newest evaluation.

  double speed() const;  // Examples per second over all training of this job.

  // --- resuming: the work of former jobs counts as done.
  // `done` holds the closures that former jobs ended. The manifest has the losses and metrics of
  // whole epochs; the losses and metrics of an incomplete epoch are unknown. The time of former
  // jobs does not count as time of this job.
  void Resume(const IntervalSet& done, const IntervalSet& dead, const v1::Manifest& manifest,
              bool same_plan, const Context& context);
  const IntervalSet& resumed() const { return resumed_; }
  std::uint64_t steps_total() const { return ShownStep(plan_->steps()); }

  // --- lines and views
  void WriteEpochLines(const Context& context) { EpochLinesUpTo(rows_.size(), context); }
  std::uint64_t step_lines_dropped() const { return step_lines_.dropped(); }
  struct View {
    bool active = false, ended = false;
    bool training = false;  // The job is in the training phase.
    // True while no new examples are trained on. The speed is then 0 and the remaining time
    // unknown.
    bool paused = false;
    bool planned = false;  // The closures come from a plan.
    double rate = 0;       // Present speed of training, in examples per second.
  };
  void FillStatus(const View& view, v1::JobStatus* status) const;
  void FillReport(ReportData* report) const;
  void FillManifest(std::uint64_t eval_examples, v1::Manifest* manifest) const;

  // --- the journal. Read returns InvalidArgument for a closure beyond the plan or a malformed set.
  // If the job has `ended`, Read ignores closures that wait to be folded.
  void Fill(v1::JobSnapshot* snapshot) const;
  void FillCounters(v1::JobCounters* counters) const;
  absl::Status Read(const v1::JobSnapshot& snapshot, bool ended);
  void ReadCounters(const v1::JobCounters& counters);
  void ShiftClock(std::chrono::nanoseconds by) { epoch_began_ += by; }

 private:
  struct Closure {
    std::uint64_t examples = 0, steps = 0;
    double loss_sum = 0;
    std::vector<TrainedStep> steps_trained;
  };
  struct Epoch {
    std::uint64_t steps = 0, examples = 0;
    std::uint64_t measured = 0;  // Number of examples that contributed to loss_sum.
    double loss_sum = 0;
  };
  std::uint64_t NextBarrier(std::uint64_t after) const;
  void Fold(const IntervalSet& dead, const Context& context);
  bool FoldNext(const IntervalSet& dead, const Context& context);
  void EndEpoch(const Context& context);
  void EpochLine(const v1::EpochRow& row, const Context& context);
  void EpochLinesUpTo(std::uint64_t epoch, const Context& context);
  void CountFormerSteps(const v1::Manifest& manifest, bool same_plan);
  // Returns the global step to show for a position in the plan. The result includes the steps that
  // former jobs took.
  std::uint64_t ShownStep(std::uint64_t position) const {
    return position + static_cast<std::uint64_t>(former_steps_apart_);
  }

  const Options options_;
  const plan::Plan* plan_ = nullptr;
  std::uint64_t barrier_ = 0, evaluated_ = 0;
  // Closures that have succeeded and are not folded yet.
  std::map<std::uint64_t, Closure> waiting_;
  std::uint64_t folded_ = 0;
  std::uint64_t succeeded_ = 0, steps_done_ = 0, examples_done_ = 0;
  double last_loss_ = std::numeric_limits<double>::quiet_NaN();
  Epoch epoch_;  // The epoch that is being folded.
  MonoTime epoch_began_{0}, evaluation_began_{0}, evaluation_in_epoch_{0};
  double training_seconds_ = 0;
  std::vector<v1::EpochRow> rows_;
  std::uint64_t epoch_lines_ = 0;  // Number of rows that are in metrics.jsonl already.
  EvaluationResult evaluation_;
  StepLines step_lines_;
  IntervalSet resumed_;
  std::uint64_t resumed_examples_ = 0;
  // The number of steps that former jobs took for the resumed epochs, minus the number that this
  // plan has for them.
  std::int64_t former_steps_apart_ = 0;
};

// The name of the metric in a manifest for the steps of a trained epoch (scope "train").
inline constexpr char kStepsMetric[] = "steps";

// Returns the steps of epochs 1, 2, … from the manifest. The manifest may lack a valid number for
// an epoch, because an older build wrote it, or because the number is not whole. The steps of this
// epoch then come from `counted` if the job has the manifest's plan, and otherwise from the
// manifest's plan. `counted` has the numbers that this job counted itself.
std::vector<std::uint64_t> StepsOfEpochs(const v1::Manifest& manifest, bool same_plan,
                                         std::vector<std::uint64_t> counted);

}  // namespace evergrad::coordinator

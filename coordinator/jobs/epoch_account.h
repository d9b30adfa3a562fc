// The account of a job's work: which closures have succeeded, what came of each epoch, and how far
// training may go before the next evaluation.
//
//   Count ─▶ waits for the closures before it ─▶ folded in closure order ─▶ a row for each epoch
//
// Folding in closure order makes sums of floats the same whichever worker was faster. Reading the
// journal runs the same code as the events did.
//
// A barrier is an epoch at whose end nothing new is granted until its evaluation has ended; the
// last epoch is one always. Closures, positions and epochs are those of the plan; an epoch's number
// begins with 1, and `barrier` and `evaluated` say how many epochs lie before the barrier that is
// worked towards, and before the newest one whose evaluation stands. Seconds are of the monotonic
// clock. A speed or a loss that was not measured is NaN.
//
// No clock, no I/O; the lines of metrics.jsonl go to the sink that the call brings. Not
// thread-safe: the control executor's. Bounds: the curve's, and as many closures that wait as
// the caller lets lie behind one that has not ended (waiting()).
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
    std::uint64_t epochs = 1, evaluate_every = 0;  // 0: only the last epoch is evaluated
    bool counts_only = false;  // An evaluation counts, and measures no loss (counting jobs).
    StepLines::Options step_lines = {};
  };
  // When something happens, and where its lines go; null: they are not written, because the journal
  // is read, which has them.
  struct Context {
    MonoTime now;
    std::int64_t wall_ms = 0;
    LineSink* lines = nullptr;
  };
  EpochAccount(const Options& options, MonoTime now);

  // --- the plan. It outlives the account and is known before anything is counted.
  void SetPlan(const plan::Plan* plan) { plan_ = plan; }
  void BeginPlan() { barrier_ = NextBarrier(0); }
  std::uint64_t barrier() const { return barrier_; }
  std::uint64_t evaluated() const { return evaluated_; }
  // Closures below it lie before the barrier.
  std::uint64_t BarrierClosure() const { return barrier_ * plan_->closures_per_epoch(); }
  bool EvaluationDue() const { return evaluated_ < barrier_ && plan_->eval_closures() > 0; }
  // The barrier is reached and needs no evaluation any more. True: training continues to the
  // next one. False: it was the last.
  bool PassBarrier(const Context& context);

  // --- closures
  struct Counted {
    std::uint64_t steps = 0, examples = 0;
  };
  // A closure has succeeded for the first time. `dead` closures never end, and are passed over when
  // folding. Returns what counts: the plan's steps, and no more examples than the plan has.
  Counted Count(ClosureId closure, std::uint64_t examples, double loss_sum,
                std::vector<TrainedStep> steps, const IntervalSet& dead, const Context& context);
  // The same of a closure that is in no plan (functions).
  void CountUnplanned(std::uint64_t steps, std::uint64_t examples);
  void StartClock(MonoTime now) { epoch_began_ = now; }  // Training begins.
  std::uint64_t succeeded() const { return succeeded_; }
  std::uint64_t steps_done() const { return steps_done_; }
  std::uint64_t examples_done() const { return examples_done_; }
  std::uint64_t folded() const { return folded_; }  // All closures below it have ended.
  std::uint64_t waiting() const { return waiting_.size(); }
  void ForgetWaiting() { waiting_.clear(); }  // The job has ended.

  // --- evaluation. Its time is not the epoch's.
  void BeginEvaluation(MonoTime now) { evaluation_began_ = now; }
  void FinishEvaluation(EvaluationResult result, MonoTime now);
  // Values have changed: the newest evaluation does not stand. `under_way`: one had begun.
  void VoidEvaluation(bool under_way, MonoTime now);
  const EvaluationResult& evaluation() const { return evaluation_; }  // The newest.

  double speed() const;  // Over all training of this job, in examples a second.

  // --- resuming: the work of former jobs counts as done
  // `done`: closures that they ended. Losses and metrics of whole epochs are in the manifest; those
  // of a part of an epoch are not known. Their time is not this job's.
  void Resume(const IntervalSet& done, const IntervalSet& dead, const v1::Manifest& manifest,
              bool same_plan, const Context& context);
  const IntervalSet& resumed() const { return resumed_; }
  std::uint64_t steps_total() const { return ShownStep(plan_->steps()); }

  // --- lines and views
  void WriteEpochLines(const Context& context) { EpochLinesUpTo(rows_.size(), context); }
  std::uint64_t step_lines_dropped() const { return step_lines_.dropped(); }
  struct View {
    bool active = false, ended = false;
    bool training = false;  // In the phase of that name.
    bool paused = false;    // No new examples are trained on: the speed is 0, the end unknown.
    bool planned = false;   // Its closures are a plan's.
    double rate = 0;        // Examples a second, as trained now.
  };
  void FillStatus(const View& view, v1::JobStatus* status) const;
  void FillReport(ReportData* report) const;
  void FillManifest(std::uint64_t eval_examples, v1::Manifest* manifest) const;

  // --- the journal. InvalidArgument: a closure beyond the plan, or a malformed set. Of a job that
  // has ended, closures that wait are left out.
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
    std::uint64_t measured = 0;  // Of the examples, those that loss_sum is of.
    double loss_sum = 0;
  };
  std::uint64_t NextBarrier(std::uint64_t after) const;
  void Fold(const IntervalSet& dead, const Context& context);
  bool FoldNext(const IntervalSet& dead, const Context& context);
  void EndEpoch(const Context& context);
  void EpochLine(const v1::EpochRow& row, const Context& context);
  void EpochLinesUpTo(std::uint64_t epoch, const Context& context);
  void CountFormerSteps(const v1::Manifest& manifest, bool same_plan);
  // A position in the plan as people count it: behind the steps that former jobs took.
  std::uint64_t ShownStep(std::uint64_t position) const {
    return position + static_cast<std::uint64_t>(former_steps_apart_);
  }

  const Options options_;
  const plan::Plan* plan_ = nullptr;
  std::uint64_t barrier_ = 0, evaluated_ = 0;
  std::map<std::uint64_t, Closure> waiting_;  // Succeeded, and not folded.
  std::uint64_t folded_ = 0;
  std::uint64_t succeeded_ = 0, steps_done_ = 0, examples_done_ = 0;
  double last_loss_ = std::numeric_limits<double>::quiet_NaN();
  Epoch epoch_;  // That is being folded.
  MonoTime epoch_began_{0}, evaluation_began_{0}, evaluation_in_epoch_{0};
  double training_seconds_ = 0;
  std::vector<v1::EpochRow> rows_;
  std::uint64_t epoch_lines_ = 0;  // Rows that metrics.jsonl has.
  EvaluationResult evaluation_;
  StepLines step_lines_;
  IntervalSet resumed_;
  std::uint64_t resumed_examples_ = 0;
  // The steps that former jobs took for the resumed epochs, less the steps that this plan has.
  std::int64_t former_steps_apart_ = 0;
};

// The metric under which a manifest keeps the steps of a trained epoch (scope "train").
inline constexpr char kStepsMetric[] = "steps";

// The steps of epochs 1, 2, …, as the manifest says them. Where it does not (an older build wrote
// it, or what it says is no whole number): as its own plan has them, and under the same plan as in
// `counted`, where this job counted them itself.
std::vector<std::uint64_t> StepsOfEpochs(const v1::Manifest& manifest, bool same_plan,
                                         std::vector<std::uint64_t> counted);

}  // namespace evergrad::coordinator

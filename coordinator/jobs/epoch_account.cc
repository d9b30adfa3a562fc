#include "coordinator/jobs/epoch_account.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/plan/plan.h"
#include "coordinator/jobs/json_lines.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

double Seconds(MonoTime span) { return std::chrono::duration<double>(span).count(); }

Json EpochJson(const v1::EpochRow& row, std::int64_t wall_ms) {
  Json json{{"kind", "epoch"},
            {"wall_ms", wall_ms},
            {"epoch", row.epoch()},
            {"steps", row.steps()},
            {"train_loss", Real(row.train_loss())},
            {"eval_loss", Real(row.eval_loss())},
            {"eval_accuracy", Real(row.eval_accuracy())},
            {"seconds", Real(row.seconds())},
            {"examples_per_second", Real(row.examples_per_second())}};
  for (const auto& [name, value] : row.metrics()) json["eval_" + name] = Real(value);
  return json;
}

// FillRow puts an evaluation into the row of its epoch, and EvaluationOf reads it from there.
void FillRow(const EvaluationResult& evaluation, v1::EpochRow* row) {
  if (!evaluation.counts.empty()) row->set_counting_sum(evaluation.counts.begin()->second);
  row->clear_metrics();
  for (const auto& [name, value] : evaluation.metrics) {
    if (name == "loss")
      row->set_eval_loss(value);
    else if (name == "accuracy")
      row->set_eval_accuracy(value);
    else
      (*row->mutable_metrics())[name] = value;
  }
}

EvaluationResult EvaluationOf(const v1::EpochRow& row, bool counts_only) {
  EvaluationResult result;
  if (counts_only) {
    result.counts["count"] = row.counting_sum();
    return result;
  }
  if (std::isfinite(row.eval_loss())) result.metrics["loss"] = row.eval_loss();
  if (std::isfinite(row.eval_accuracy())) result.metrics["accuracy"] = row.eval_accuracy();
  for (const auto& [name, value] : row.metrics()) result.metrics[name] = value;
  return result;
}

// Copies the metrics of the manifest into the rows of their epochs. Returns the epochs that have an
// evaluation in the manifest.
std::set<std::uint64_t> ReadFormerMetrics(const v1::Manifest& manifest,
                                          std::vector<v1::EpochRow>* rows) {
  std::set<std::uint64_t> evaluated;
  for (const v1::FinishedMetric& metric : manifest.metrics()) {
    if (metric.epoch() == 0 || metric.epoch() > rows->size()) continue;
    v1::EpochRow& row = (*rows)[metric.epoch() - 1];
    if (metric.scope() == "train" && metric.name() == "loss") row.set_train_loss(metric.value());
    if (metric.scope() != "eval") continue;
    evaluated.insert(metric.epoch());
    if (metric.name() == "loss") {
      row.set_eval_loss(metric.value());
    } else if (metric.name() == "accuracy") {
      row.set_eval_accuracy(metric.value());
    } else if (metric.name() != "count") {
      (*row.mutable_metrics())[metric.name()] = metric.value();
    } else if (std::abs(metric.value()) < 0x1p53) {
      // A double holds counts up to 2^53 exactly; a larger value is not a count that this program
      // wrote.
      row.set_counting_sum(static_cast<std::int64_t>(metric.value()));
    }
  }
  return evaluated;
}

// Adds the metrics of one epoch to a manifest. `evaluated` is true if the evaluation of the epoch
// is valid.
void FillMetrics(const v1::EpochRow& row, bool evaluated, const plan::Plan& plan,
                 std::uint64_t eval_examples, v1::Manifest* manifest) {
  const auto add = [&](const char* scope, const std::string& name, double value) {
    if (!std::isfinite(value)) return;
    v1::FinishedMetric* metric = manifest->add_metrics();
    metric->set_scope(scope);
    metric->set_epoch(row.epoch());
    metric->set_global_step(plan.steps() / plan.spec().epochs * row.epoch());
    metric->set_name(name);
    metric->set_value(value);
    metric->set_examples(std::string_view(scope) == "train" ? plan.spec().train_examples
                                                            : eval_examples);
  };
  add("train", "loss", row.train_loss());
  add("train", kStepsMetric, static_cast<double>(row.steps()));
  if (!evaluated) return;
  add("eval", "loss", row.eval_loss());
  add("eval", "accuracy", row.eval_accuracy());
  for (const auto& [name, value] :
       std::map<std::string, double>(row.metrics().begin(), row.metrics().end()))
    add("eval", name, value);
  if (row.counting_sum() != 0) add("eval", "count", static_cast<double>(row.counting_sum()));
}

void FillClosure(std::uint64_t number, std::uint64_t examples, double loss_sum,
                 const std::vector<TrainedStep>& steps, v1::CountedClosure* one) {
  one->set_closure(number);
  one->set_examples(examples);
  one->set_loss_sum(loss_sum);
  for (const TrainedStep& step : steps) {
    v1::StepRecord* record = one->add_step_records();
    record->set_global_step(step.global_step);
    record->set_loss(step.loss);
    record->set_examples(step.examples);
  }
}

}  // namespace

EpochAccount::EpochAccount(const Options& options, MonoTime now)
    : options_(options), step_lines_(options.step_lines, now) {}

std::uint64_t EpochAccount::NextBarrier(std::uint64_t after) const {
  return options_.evaluate_every == 0 ? options_.epochs
                                      : std::min(options_.epochs, after + options_.evaluate_every);
}

bool EpochAccount::PassBarrier(const Context& context) {
  evaluated_ = barrier_;
  if (barrier_ >= options_.epochs) return false;
  // The last epoch may be evaluated again, so its line is written at the end.
  EpochLinesUpTo(barrier_, context);
  barrier_ = NextBarrier(barrier_);
  return true;
}

// ---------------------------------------------------------------- closures

EpochAccount::Counted EpochAccount::Count(ClosureId closure, std::uint64_t examples,
                                          double loss_sum, std::vector<TrainedStep> steps,
                                          const IntervalSet& dead, const Context& context) {
  const plan::ClosureRange range = plan_->Closure(closure);
  const Counted counted{range.steps, std::min<std::uint64_t>(examples, range.end - range.begin)};
  CountUnplanned(counted.steps, counted.examples);
  if (counted.examples > 0) last_loss_ = loss_sum / static_cast<double>(counted.examples);
  waiting_.emplace(closure.value(),
                   Closure{counted.examples, counted.steps, loss_sum, std::move(steps)});
  Fold(dead, context);
  return counted;
}

void EpochAccount::CountUnplanned(std::uint64_t steps, std::uint64_t examples) {
  ++succeeded_;
  steps_done_ += steps;
  examples_done_ += examples;
}

void EpochAccount::Fold(const IntervalSet& dead, const Context& context) {
  while (FoldNext(dead, context)) {
    if (folded_ % plan_->closures_per_epoch() == 0) EndEpoch(context);
  }
}

// Returns false if the next closure has not ended.
bool EpochAccount::FoldNext(const IntervalSet& dead, const Context& context) {
  Closure closure;  // Stays zero for a dead closure and for a closure of a former job.
  if (!waiting_.empty() && waiting_.begin()->first == folded_) {
    closure = std::move(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
  } else if (folded_ < plan_->closures() && resumed_.Contains(folded_)) {
    const plan::ClosureRange range = plan_->Closure(ClosureId(folded_));
    epoch_.steps += range.steps;
    epoch_.examples += range.end - range.begin;
  } else if (folded_ >= plan_->closures() || !dead.Contains(folded_)) {
    return false;
  }
  if (!closure.steps_trained.empty())
    step_lines_.Write(ClosureId(folded_), plan_->Closure(ClosureId(folded_)), former_steps_apart_,
                      closure.steps_trained, context.now, context.lines);
  epoch_.steps += closure.steps;
  epoch_.examples += closure.examples;
  epoch_.measured += closure.examples;
  epoch_.loss_sum += closure.loss_sum;
  ++folded_;
  return true;
}

void EpochAccount::EndEpoch(const Context& context) {
  const double seconds = std::max(0.0, Seconds(context.now - epoch_began_ - evaluation_in_epoch_));
  training_seconds_ += seconds;
  v1::EpochRow row;
  row.set_epoch(folded_ / plan_->closures_per_epoch());
  row.set_steps(epoch_.steps);
  row.set_train_loss(epoch_.measured > 0 ? epoch_.loss_sum / static_cast<double>(epoch_.measured)
                                         : std::nan(""));
  row.set_eval_loss(std::nan(""));
  row.set_eval_accuracy(std::nan(""));
  row.set_seconds(seconds);
  row.set_examples_per_second(MeasuredSpeed(epoch_.measured, seconds));
  rows_.push_back(row);
  epoch_ = Epoch{};
  epoch_began_ = context.now;
  evaluation_in_epoch_ = MonoTime{0};
  // The line of an epoch at a barrier is written once its evaluation is valid.
  if (row.epoch() != barrier_) EpochLinesUpTo(row.epoch(), context);
}

// ---------------------------------------------------------------- evaluation

void EpochAccount::FinishEvaluation(EvaluationResult result, MonoTime now) {
  evaluation_ = std::move(result);
  evaluation_in_epoch_ += now - evaluation_began_;
  evaluated_ = barrier_;
  if (barrier_ == 0 || barrier_ > rows_.size()) return;
  FillRow(evaluation_, &rows_[barrier_ - 1]);
}

void EpochAccount::VoidEvaluation(bool under_way, MonoTime now) {
  if (under_way) evaluation_in_epoch_ += now - evaluation_began_;
  if (barrier_ > 0) evaluated_ = barrier_ - 1;
}

double EpochAccount::speed() const {
  return MeasuredSpeed(examples_done_ - resumed_examples_, training_seconds_);
}

// ---------------------------------------------------------------- resuming

void EpochAccount::Resume(const IntervalSet& done, const IntervalSet& dead,
                          const v1::Manifest& manifest, bool same_plan, const Context& context) {
  resumed_ = done;
  for (std::uint64_t at = 0;;) {
    const auto c = resumed_.FirstAtLeast(at);
    if (!c || *c >= plan_->closures()) break;
    const plan::ClosureRange range = plan_->Closure(ClosureId(*c));
    CountUnplanned(range.steps, range.end - range.begin);
    resumed_examples_ += range.end - range.begin;
    at = *c + 1;
  }
  epoch_began_ = context.now;
  // The lines of these epochs are written later, when the rows have the numbers of the manifest.
  Fold(dead, {context.now, context.wall_ms, nullptr});
  epoch_lines_ = 0;
  CountFormerSteps(manifest, same_plan);
  training_seconds_ = 0;
  for (v1::EpochRow& row : rows_) {
    row.set_seconds(0);
    row.set_examples_per_second(std::nan(""));
  }
  const std::set<std::uint64_t> evaluated = ReadFormerMetrics(manifest, &rows_);
  // Barriers with a valid evaluation are passed.
  while (barrier_ <= rows_.size() && evaluated_ < barrier_ &&
         (evaluated.contains(barrier_) || plan_->eval_closures() == 0)) {
    evaluated_ = barrier_;
    if (barrier_ == options_.epochs) break;
    barrier_ = NextBarrier(barrier_);
  }
  if (evaluated_ == options_.epochs && evaluated_ > 0)
    evaluation_ = EvaluationOf(rows_.back(), options_.counts_only);
  EpochLinesUpTo(evaluated_, context);
}

// Adjusts the shown number of steps. For the epochs that former jobs trained, the shown number has
// the steps of those jobs, which may differ from the steps in this job's plan.
void EpochAccount::CountFormerSteps(const v1::Manifest& manifest, bool same_plan) {
  std::vector<std::uint64_t> steps;
  for (const v1::EpochRow& row : rows_) steps.push_back(row.steps());
  steps = StepsOfEpochs(manifest, same_plan, std::move(steps));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    former_steps_apart_ +=
        static_cast<std::int64_t>(steps[i]) - static_cast<std::int64_t>(rows_[i].steps());
    rows_[i].set_steps(steps[i]);
  }
  steps_done_ = ShownStep(steps_done_);
}

// ---------------------------------------------------------------- lines and views

void EpochAccount::EpochLine(const v1::EpochRow& row, const Context& context) {
  if (context.lines == nullptr) return;
  Json json = EpochJson(row, context.wall_ms);
  if (row.epoch() == evaluated_) {
    for (const auto& [name, count] : evaluation_.counts) json[name] = count;
  }
  context.lines->Add(Dump(json), false);
}

// Writes the line of each epoch once, when it can no longer change.
void EpochAccount::EpochLinesUpTo(std::uint64_t epoch, const Context& context) {
  for (; epoch_lines_ < std::min<std::uint64_t>(epoch, rows_.size()); ++epoch_lines_)
    EpochLine(rows_[epoch_lines_], context);
}

void EpochAccount::FillStatus(const View& view, v1::JobStatus* status) const {
  status->set_closures_succeeded(succeeded_);
  status->set_steps_done(steps_done_);
  if (view.planned) {
    status->set_steps_total(steps_total());
  }
  if (view.planned && steps_done_ > 0) {
    // At the end of an epoch the status shows this epoch until its evaluation is over.
    const std::uint64_t closure = view.training || folded_ == 0 ? folded_ : folded_ - 1;
    status->set_epoch(std::min(closure / plan_->closures_per_epoch() + 1, options_.epochs));
  }
  status->set_examples_per_second(view.ended && training_seconds_ > 0 ? speed()
                                  : view.paused                       ? 0
                                                                      : view.rate);
  status->set_loss(last_loss_);
  double eta = view.ended ? 0 : -1;
  if (view.planned && view.rate > 0 && !view.ended && !view.paused) {
    const double left = static_cast<double>(plan_->spec().train_examples) * plan_->spec().epochs -
                        static_cast<double>(examples_done_);
    eta = std::max(0.0, left) / view.rate;
  }
  status->set_eta_seconds(eta);
  for (const v1::EpochRow& row : rows_) {
    // The row of a barrier is shown once its evaluation is over.
    if (view.active && row.epoch() == barrier_ && EvaluationDue()) break;
    *status->add_epoch_rows() = row;
  }
}

void EpochAccount::FillReport(ReportData* report) const {
  report->examples_per_second = speed();
  report->metrics = evaluation_.metrics;
  report->steps = steps_done_;
  report->closures_succeeded = succeeded_;
  report->loss_by_step = step_lines_.curve().points();
  for (const v1::EpochRow& row : rows_) {
    report->epochs.push_back({row.epoch(),
                              row.steps(),
                              row.train_loss(),
                              row.eval_loss(),
                              row.seconds(),
                              row.examples_per_second(),
                              {row.metrics().begin(), row.metrics().end()}});
    if (std::isfinite(row.eval_accuracy()))
      report->epochs.back().metrics["accuracy"] = row.eval_accuracy();
  }
}

void EpochAccount::FillManifest(std::uint64_t eval_examples, v1::Manifest* manifest) const {
  for (const v1::EpochRow& row : rows_)
    FillMetrics(row, row.epoch() <= evaluated_, *plan_, eval_examples, manifest);
}

// ---------------------------------------------------------------- the journal

void EpochAccount::Fill(v1::JobSnapshot* s) const {
  s->set_barrier_epochs(barrier_);
  s->set_evaluated_epochs(evaluated_);
  for (const auto& [number, closure] : waiting_)
    FillClosure(number, closure.examples, closure.loss_sum, closure.steps_trained,
                s->add_unfolded());
  s->set_folded(folded_);
  s->set_succeeded(succeeded_);
  s->set_steps_done(steps_done_);
  s->set_examples_done(examples_done_);
  s->set_last_loss(last_loss_);
  s->mutable_epoch()->set_steps(epoch_.steps);
  s->mutable_epoch()->set_examples(epoch_.examples);
  s->mutable_epoch()->set_loss_sum(epoch_.loss_sum);
  s->mutable_epoch()->set_measured(epoch_.measured);
  s->set_epoch_began_mono_ns(epoch_began_.count());
  s->set_evaluation_in_epoch_ns(evaluation_in_epoch_.count());
  s->set_training_seconds(training_seconds_);
  for (const v1::EpochRow& row : rows_) *s->add_epoch_rows() = row;
  evaluation_.Fill(s);
  s->set_epoch_lines(epoch_lines_);
  step_lines_.curve().Fill(s->mutable_loss_curve());
  *s->mutable_resumed() = client::ToProto(resumed_);
  s->set_resumed_examples(resumed_examples_);
  s->set_former_steps_apart(former_steps_apart_);
}

void EpochAccount::FillCounters(v1::JobCounters* counters) const {
  counters->set_step_lines_dropped(step_lines_.dropped());
}

absl::Status EpochAccount::Read(const v1::JobSnapshot& s, bool ended) {
  barrier_ = s.barrier_epochs();
  evaluated_ = s.evaluated_epochs();
  for (const v1::CountedClosure& one : s.unfolded()) {
    if (ended) break;
    if (plan_ == nullptr || one.closure() >= plan_->closures())
      return absl::InvalidArgumentError("the journal has a closure beyond the plan");
    waiting_[one.closure()] = {one.examples(), plan_->Closure(ClosureId(one.closure())).steps,
                               one.loss_sum(), StepsOf(one.step_records())};
  }
  folded_ = s.folded();
  succeeded_ = s.succeeded();
  steps_done_ = s.steps_done();
  examples_done_ = s.examples_done();
  last_loss_ = s.last_loss();
  epoch_ = {s.epoch().steps(), s.epoch().examples(), s.epoch().measured(), s.epoch().loss_sum()};
  epoch_began_ = MonoTime(s.epoch_began_mono_ns());
  evaluation_in_epoch_ = MonoTime(s.evaluation_in_epoch_ns());
  training_seconds_ = s.training_seconds();
  rows_.assign(s.epoch_rows().begin(), s.epoch_rows().end());
  evaluation_.Read(s);
  epoch_lines_ = s.epoch_lines();
  step_lines_.curve().Read(s.loss_curve());
  EG_ASSIGN_OR_RETURN(resumed_, client::FromProto(s.resumed()));
  resumed_examples_ = s.resumed_examples();
  former_steps_apart_ = s.former_steps_apart();
  return absl::OkStatus();
}

void EpochAccount::ReadCounters(const v1::JobCounters& counters) {
  step_lines_.set_dropped(counters.step_lines_dropped());
}

// ---------------------------------------------------------------- steps of former jobs

std::vector<std::uint64_t> StepsOfEpochs(const v1::Manifest& manifest, bool same_plan,
                                         std::vector<std::uint64_t> counted) {
  std::vector<std::uint64_t> steps = std::move(counted);
  const auto plan = plan::Plan::Create(client::PlanSpecOf(manifest.plan()));
  if (!same_plan && plan.ok() && plan->spec().epochs > 0)
    std::fill(steps.begin(), steps.end(), plan->steps() / plan->spec().epochs);
  for (const v1::FinishedMetric& metric : manifest.metrics()) {
    if (metric.scope() != "train" || metric.name() != kStepsMetric || metric.epoch() == 0 ||
        metric.epoch() > steps.size())
      continue;
    // A double holds whole numbers up to 2^53 exactly.
    if (metric.value() >= 1 && metric.value() < 0x1p53 &&
        std::floor(metric.value()) == metric.value())
      steps[metric.epoch() - 1] = static_cast<std::uint64_t>(metric.value());
  }
  return steps;
}

}  // namespace evergrad::coordinator

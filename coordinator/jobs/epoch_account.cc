#include "coordinator/jobs/epoch_account.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/json_text.h"
#include "coordinator/jobs/resumed_steps.h"
#include "coordinator/jobs/speed.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

constexpr std::chrono::milliseconds kSampleEvery{500};

double Seconds(MonoTime span) { return std::chrono::duration<double>(span).count(); }

void FillCurve(const Curve& curve, v1::JobCurve* out) {
  for (const ReportPoint& point : curve.points()) {
    out->add_x(point.x);
    out->add_y(point.y);
  }
  out->set_seen(curve.seen());
  out->set_stride(curve.stride());
}

void ReadCurve(const v1::JobCurve& in, Curve* curve) {
  std::vector<ReportPoint> points;
  for (int i = 0; i < std::min(in.x_size(), in.y_size()); ++i) points.push_back({in.x(i), in.y(i)});
  curve->Restore(std::move(points), in.seen(), in.stride());
}

}  // namespace

std::vector<EpochAccount::Step> EpochAccount::StepsOf(
    const google::protobuf::RepeatedPtrField<v1::StepRecord>& records) {
  std::vector<Step> steps;
  steps.reserve(static_cast<std::size_t>(records.size()));
  for (const v1::StepRecord& record : records)
    steps.push_back({record.global_step(), record.loss(), record.examples()});
  return steps;
}

EpochAccount::EpochAccount(const Options& options, MonoTime now)
    : options_(options),
      loss_curve_(options.curve_points_max),
      rate_curve_(options.curve_points_max),
      step_tokens_(options.step_lines_burst),
      tokens_at_(now) {}

std::uint64_t EpochAccount::NextBarrier(std::uint64_t after) const {
  return options_.evaluate_every == 0 ? options_.epochs
                                      : std::min(options_.epochs, after + options_.evaluate_every);
}

bool EpochAccount::PassBarrier(const Context& context) {
  evaluated_ = barrier_;
  if (barrier_ >= options_.epochs) return false;
  EpochLinesUpTo(barrier_, context);  // The last epoch may yet be measured again: at the end.
  barrier_ = NextBarrier(barrier_);
  return true;
}

// ---------------------------------------------------------------- closures

EpochAccount::Counted EpochAccount::Count(ClosureId closure, std::uint64_t examples,
                                          double loss_sum, std::vector<Step> steps,
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

// False: the next closure has not ended.
bool EpochAccount::FoldNext(const IntervalSet& dead, const Context& context) {
  Closure closure;  // Zeros: it is dead, or a former job's, of which nothing was measured.
  if (!waiting_.empty() && waiting_.begin()->first == folded_) {
    closure = std::move(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
  } else if (folded_ >= plan_->closures()) {
    return false;
  } else if (resumed_.Contains(folded_)) {
    const plan::ClosureRange range = plan_->Closure(ClosureId(folded_));
    epoch_.steps += range.steps;
    epoch_.examples += range.end - range.begin;
  } else if (!dead.Contains(folded_)) {
    return false;
  }
  StepLines(ClosureId(folded_), closure.records, context);
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
  // The line of an epoch that is evaluated is written once its evaluation stands.
  if (row.epoch() != barrier_) EpochLinesUpTo(row.epoch(), context);
}

// ---------------------------------------------------------------- evaluation

void EpochAccount::FinishEvaluation(EvaluationResult result, MonoTime now) {
  evaluation_ = std::move(result);
  evaluation_in_epoch_ += now - evaluation_began_;
  evaluated_ = barrier_;
  if (barrier_ > rows_.size()) return;
  v1::EpochRow& row = rows_[barrier_ - 1];
  if (!evaluation_.counts.empty()) row.set_counting_sum(evaluation_.counts.begin()->second);
  row.clear_metrics();
  for (const auto& [name, value] : evaluation_.metrics) {
    if (name == "loss")
      row.set_eval_loss(value);
    else if (name == "accuracy")
      row.set_eval_accuracy(value);
    else
      (*row.mutable_metrics())[name] = value;
  }
}

void EpochAccount::VoidEvaluation(bool under_way, MonoTime now) {
  if (under_way) evaluation_in_epoch_ += now - evaluation_began_;
  evaluated_ = barrier_ - 1;
}

// ---------------------------------------------------------------- speed

void EpochAccount::BeginRate(MonoTime now) {
  rate_at_ = now;
  rate_examples_ = examples_done_;
  next_sample_ = rate_at_ + kSampleEvery;
}

// Samples weigh by their length, so that a short one at the end of a stretch of training says no
// more than it measured, and the shortest run has a point.
bool EpochAccount::SampleRate(MonoTime began, const Context& context) {
  const double seconds = Seconds(context.now - rate_at_);
  if (seconds < kTimedSecondsMin) return false;
  const double instant = static_cast<double>(examples_done_ - rate_examples_) / seconds;
  const double keep = std::pow(0.6, seconds / std::chrono::duration<double>(kSampleEvery).count());
  BeginRate(context.now);
  rate_ = rate_ == 0 ? instant : keep * rate_ + (1 - keep) * instant;
  sampled_seconds_ = Seconds(rate_at_ - began);
  rate_curve_.Add(sampled_seconds_, rate_);
  if (context.lines == nullptr) return true;
  context.lines->Add(Dump(Json{{"kind", "rate"},
                               {"seconds", sampled_seconds_},
                               {"examples_per_second", Real(rate_)},
                               {"steps_done", steps_done_},
                               {"closures_done", succeeded_}}),
                     true);
  return true;
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
  // The lines of these epochs are written once the manifest's numbers are in them.
  Fold(dead, {context.now, context.wall_ms, nullptr});
  epoch_lines_ = 0;
  CountFormerSteps(manifest, same_plan);
  training_seconds_ = 0;
  for (v1::EpochRow& row : rows_) {
    row.set_seconds(0);
    row.set_examples_per_second(std::nan(""));
  }
  const std::set<std::uint64_t> evaluated = ReadFormerMetrics(manifest);
  // Barriers whose evaluation stands are passed.
  while (barrier_ <= rows_.size() && evaluated_ < barrier_ &&
         (evaluated.contains(barrier_) || plan_->eval_closures() == 0)) {
    evaluated_ = barrier_;
    if (barrier_ == options_.epochs) break;
    barrier_ = NextBarrier(barrier_);
  }
  if (evaluated_ == options_.epochs && evaluated_ > 0) TakeEvaluationFromRow(rows_.back());
  EpochLinesUpTo(evaluated_, context);
}

// This plan says how many steps it would take itself for the epochs that former jobs trained; what
// is shown is what those took.
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

// Returns the epochs that the manifest has an evaluation of.
std::set<std::uint64_t> EpochAccount::ReadFormerMetrics(const v1::Manifest& manifest) {
  std::set<std::uint64_t> evaluated;
  for (const v1::FinishedMetric& metric : manifest.metrics()) {
    if (metric.epoch() == 0 || metric.epoch() > rows_.size()) continue;
    v1::EpochRow& row = rows_[metric.epoch() - 1];
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
      // Counts up to 2^53 stand in a double; anything beyond is no count of ours.
      row.set_counting_sum(static_cast<std::int64_t>(metric.value()));
    }
  }
  return evaluated;
}

void EpochAccount::TakeEvaluationFromRow(const v1::EpochRow& row) {
  if (options_.counts_only) {
    evaluation_.counts["count"] = row.counting_sum();
    return;
  }
  if (std::isfinite(row.eval_loss())) evaluation_.metrics["loss"] = row.eval_loss();
  if (std::isfinite(row.eval_accuracy())) evaluation_.metrics["accuracy"] = row.eval_accuracy();
  for (const auto& [name, value] : row.metrics()) evaluation_.metrics[name] = value;
}

// ---------------------------------------------------------------- lines and views

void EpochAccount::EpochLine(const v1::EpochRow& row, const Context& context) {
  if (context.lines == nullptr) return;
  Json json{{"kind", "epoch"},
            {"wall_ms", context.wall_ms},
            {"epoch", row.epoch()},
            {"steps", row.steps()},
            {"train_loss", Real(row.train_loss())},
            {"eval_loss", Real(row.eval_loss())},
            {"eval_accuracy", Real(row.eval_accuracy())},
            {"seconds", Real(row.seconds())},
            {"examples_per_second", Real(row.examples_per_second())}};
  for (const auto& [name, value] : row.metrics()) json["eval_" + name] = Real(value);
  if (row.epoch() == evaluated_) {
    for (const auto& [name, count] : evaluation_.counts) json[name] = count;
  }
  context.lines->Add(Dump(json), false);
}

// Each line once, when nothing can change it any more.
void EpochAccount::EpochLinesUpTo(std::uint64_t epoch, const Context& context) {
  for (; epoch_lines_ < std::min<std::uint64_t>(epoch, rows_.size()); ++epoch_lines_)
    EpochLine(rows_[epoch_lines_], context);
}

// At most step_lines_per_second in the long run, so that a fast job does not write faster than
// anybody reads.
void EpochAccount::StepLines(ClosureId closure, const std::vector<Step>& records,
                             const Context& context) {
  if (records.empty()) return;
  if (context.lines != nullptr) {
    step_tokens_ = std::min<double>(
        options_.step_lines_burst,
        step_tokens_ + Seconds(context.now - tokens_at_) * options_.step_lines_per_second);
    tokens_at_ = context.now;
  }
  const plan::ClosureRange range = plan_->Closure(closure);
  for (const Step& record : records) {
    if (record.global_step < range.first_global_step ||
        record.global_step >= range.first_global_step + range.steps)
      continue;
    const std::uint64_t shown = ShownStep(record.global_step);
    if (std::isfinite(record.loss)) loss_curve_.Add(static_cast<double>(shown), record.loss);
    if (context.lines == nullptr) continue;
    if (step_tokens_ < 1) {
      ++step_lines_dropped_;
      continue;
    }
    step_tokens_ -= 1;
    const bool kept = context.lines->Add(Dump(Json{{"kind", "step"},
                                                   {"step", shown},
                                                   {"epoch", range.epoch + 1},
                                                   {"closure", closure.value()},
                                                   {"loss", Real(record.loss)},
                                                   {"examples", record.examples}}),
                                         true);
    if (!kept) ++step_lines_dropped_;
  }
}

void EpochAccount::FillStatus(const View& view, v1::JobStatus* status) const {
  status->set_closures_succeeded(succeeded_);
  status->set_steps_done(steps_done_);
  if (view.planned) {
    status->set_steps_total(steps_total());
  }
  if (view.planned && steps_done_ > 0) {
    // At an epoch's end the epoch is still that one until its evaluation is over.
    const std::uint64_t closure = view.training || folded_ == 0 ? folded_ : folded_ - 1;
    status->set_epoch(std::min(closure / plan_->closures_per_epoch() + 1, options_.epochs));
  }
  status->set_examples_per_second(view.ended && training_seconds_ > 0 ? speed()
                                  : view.paused                       ? 0
                                                                      : rate_);
  status->set_loss(last_loss_);
  double eta = view.ended ? 0 : -1;
  if (view.planned && rate_ > 0 && !view.ended && !view.paused) {
    const double left = static_cast<double>(plan_->spec().train_examples) * plan_->spec().epochs -
                        static_cast<double>(examples_done_);
    eta = std::max(0.0, left) / rate_;
  }
  status->set_eta_seconds(eta);
  for (const v1::EpochRow& row : rows_) {
    // The row of a barrier is shown once it is whole.
    if (view.active && row.epoch() == barrier_ && EvaluationDue()) break;
    *status->add_epoch_rows() = row;
  }
}

void EpochAccount::FillReport(ReportData* report) const {
  report->examples_per_second = speed();
  report->metrics = evaluation_.metrics;
  report->steps = steps_done_;
  report->closures_succeeded = succeeded_;
  report->loss_by_step = loss_curve_.points();
  report->rate_by_time = rate_curve_.points();
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
  for (const v1::EpochRow& row : rows_) {
    const auto add = [&](const char* scope, const char* name, double value) {
      if (!std::isfinite(value)) return;
      v1::FinishedMetric* metric = manifest->add_metrics();
      metric->set_scope(scope);
      metric->set_epoch(row.epoch());
      metric->set_global_step(plan_->steps() / plan_->spec().epochs * row.epoch());
      metric->set_name(name);
      metric->set_value(value);
      metric->set_examples(std::string_view(scope) == "train" ? plan_->spec().train_examples
                                                              : eval_examples);
    };
    add("train", "loss", row.train_loss());
    add("train", kStepsMetric, static_cast<double>(row.steps()));
    if (row.epoch() > evaluated_) continue;  // Its evaluation does not stand yet.
    add("eval", "loss", row.eval_loss());
    add("eval", "accuracy", row.eval_accuracy());
    for (const auto& [name, value] :
         std::map<std::string, double>(row.metrics().begin(), row.metrics().end()))
      add("eval", name.c_str(), value);
    if (row.counting_sum() != 0) add("eval", "count", static_cast<double>(row.counting_sum()));
  }
}

// ---------------------------------------------------------------- the journal

void EpochAccount::Fill(v1::JobSnapshot* s) const {
  s->set_barrier_epochs(barrier_);
  s->set_evaluated_epochs(evaluated_);
  for (const auto& [number, closure] : waiting_) {
    v1::CountedClosure* one = s->add_unfolded();
    one->set_closure(number);
    one->set_examples(closure.examples);
    one->set_loss_sum(closure.loss_sum);
    for (const Step& step : closure.records) {
      v1::StepRecord* record = one->add_step_records();
      record->set_global_step(step.global_step);
      record->set_loss(step.loss);
      record->set_examples(step.examples);
    }
  }
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
  for (const auto& [name, value] : evaluation_.metrics) {
    v1::JobNamedValue* one = s->add_final_metrics();
    one->set_name(name);
    one->set_value(value);
  }
  for (const auto& [name, count] : evaluation_.counts) {
    v1::JobNamedValue* one = s->add_final_metrics();
    one->set_name(name);
    one->set_count(count);
    one->set_is_count(true);
  }
  s->set_epoch_lines(epoch_lines_);
  s->set_rate(rate_);
  FillCurve(loss_curve_, s->mutable_loss_curve());
  FillCurve(rate_curve_, s->mutable_rate_curve());
  *s->mutable_resumed() = client::ToProto(resumed_);
  s->set_resumed_examples(resumed_examples_);
  s->set_former_steps_apart(former_steps_apart_);
}

void EpochAccount::FillCounters(v1::JobCounters* counters) const {
  counters->set_step_lines_dropped(step_lines_dropped_);
}

absl::Status EpochAccount::Read(const v1::JobSnapshot& s, bool ended) {
  barrier_ = s.barrier_epochs();
  evaluated_ = s.evaluated_epochs();
  for (const v1::CountedClosure& one : s.unfolded()) {
    if (ended) break;
    if (plan_ == nullptr || one.closure() >= plan_->closures())
      return absl::InvalidArgumentError("a closure beyond the plan");
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
  for (const v1::JobNamedValue& one : s.final_metrics()) {
    if (one.is_count())
      evaluation_.counts[one.name()] = one.count();
    else
      evaluation_.metrics[one.name()] = one.value();
  }
  epoch_lines_ = s.epoch_lines();
  rate_ = s.rate();
  ReadCurve(s.loss_curve(), &loss_curve_);
  ReadCurve(s.rate_curve(), &rate_curve_);
  EG_ASSIGN_OR_RETURN(resumed_, client::FromProto(s.resumed()));
  resumed_examples_ = s.resumed_examples();
  former_steps_apart_ = s.former_steps_apart();
  return absl::OkStatus();
}

void EpochAccount::FillNote(v1::JobNote* note) const {
  note->set_sampled(true);
  note->set_sample_seconds(sampled_seconds_);
  note->set_sample_rate(rate_);
}

void EpochAccount::ReadNote(const v1::JobNote& note) {
  if (!note.sampled()) return;
  rate_ = note.sample_rate();
  rate_curve_.Add(note.sample_seconds(), rate_);
}

void EpochAccount::ReadCounters(const v1::JobCounters& counters) {
  step_lines_dropped_ = counters.step_lines_dropped();
}

}  // namespace evergrad::coordinator

#include "worker/runner/training_run.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_join.h"
#include "common/random/philox.h"

namespace evergrad::worker {
namespace {

constexpr std::size_t kNamedExamplesMax = 8;
// The time between the announcement of a step's push and the expected end of the step. The time is
// longer than a round trip to a server on a busy host.
constexpr MonoTime kAnnouncedAhead = std::chrono::milliseconds(2);

}  // namespace

void TrainingRun::Start() {
  OpenExchange();
  feed_ = std::make_shared<BatchFeed>(
      BatchFeed::Environment{env_.control, env_.compute, options_.streams, env_.job,
                             exchange_.get()},
      work_, IfRunning([this](const absl::Status& status) {
        if (!status.ok()) return env_.owner->Fail(status);
        OnExchange();
      }));
  OnExchange();
}

bool TrainingRun::InputReady() {
  if (!feed_->has_batch()) {
    if (!batch_missed_at_) batch_missed_at_ = Now();
    feed_->Ask();
    return false;
  }
  if (!std::exchange(batch_came_, true))
    Observe(measures_.metrics->batch_wait_seconds, batch_missed_at_.value_or(Now()));
  return feed_->RowsDone();
}

void TrainingRun::ComputeStep() {
  const std::shared_ptr<ComputeJob>& compute = env_.job->compute();
  const BatchFeed::Taken taken = feed_->Take();
  batch_missed_at_.reset();
  batch_came_ = false;
  // With tables the next batch is requested now, because the ids of its rows must be known when the
  // push of this step is sent. With a device the batch is requested now because CPU cores are idle.
  // Otherwise the batch is requested during the wait for the servers.
  if ((taken.rows || compute->on_device()) && next_step() + 1 < steps()) feed_->Ask();
  PullForSecondStep();
  const std::uint64_t dropout_key = random::KeyOf(
      env_.job->seed(), absl::StrCat("dropout/", work_.closure.value(), "/", next_step()));
  auto pulled = std::make_shared<std::vector<PulledShard>>(env_.job->cache()->Take());
  CountWaitOfDevice();
  Compute(
      [compute, layout = env_.job->layout(), pulled, taken, dropout_key,
       next = feed_->next()]() -> absl::StatusOr<ComputeJob::Step> {
        EG_RETURN_IF_ERROR(compute->UseLayout(layout));
        compute->Absorb(std::move(*pulled));
        return compute->Train(*taken.batch, taken.rows.get(), dropout_key, next.get());
      },
      [this, taken](absl::StatusOr<ComputeJob::Step> step) {
        if (env_.clock != nullptr) {
          env_.job->step_ended = env_.clock->Now();
          env_.job->step_time = *env_.job->step_ended - step_begun_;
        }
        OnStep(taken, std::move(step));
      });
  AnnounceLater();
}

// Counts the time between two steps in which the device waits for servers, for a batch or for its
// host.
void TrainingRun::CountWaitOfDevice() {
  if (env_.clock == nullptr || !env_.job->step_ended) return;
  const MonoTime idle = env_.clock->Now() - *std::exchange(env_.job->step_ended, std::nullopt);
  options_.device->AddWait(std::chrono::duration<double>(idle).count());
}

// Announces this step's push shortly before the expected end of the step. The grant then arrives in
// time, and no server reserves memory during a computation. With tables a push is not announced,
// because the slots to which the step pushes are not known yet.
void TrainingRun::AnnounceLater() {
  if (env_.clock == nullptr || env_.job->layout()->slots() > 0) return;
  step_begun_ = env_.clock->Now();
  const bool pulls = next_step() + pipeline() + 2 <= steps() || AnotherQueued();
  env_.control->PostAfter(std::max<MonoTime>(env_.job->step_time - kAnnouncedAhead, MonoTime{0}),
                          IfRunning([this, shards = DenseTargets(), pulls, step = next_step()] {
                            if (Computes(step)) exchange_->Announce(shards, pulls);
                          }));
}

std::vector<ShardId> TrainingRun::DenseTargets() const {
  std::vector<ShardId> shards;
  for (std::uint32_t i = 0; i < env_.job->layout()->dense_shards(); ++i) {
    if (IsTarget(ShardId(i))) shards.emplace_back(i);
  }
  return shards;
}

absl::Status TrainingRun::NotFinite(const ReadyBatch& batch, const ComputeJob::Step& step) const {
  const std::vector<std::uint64_t>& examples = batch.examples;
  const std::vector<std::uint64_t> named(
      examples.begin(),
      examples.begin() + static_cast<std::ptrdiff_t>(std::min(examples.size(), kNamedExamplesMax)));
  return UserError(absl::OutOfRangeError(absl::StrCat(
      step.result.finite
          ? absl::StrCat("gradient exceeds the range of its wire type: ", step.overflowed, " ")
          : "loss or gradient is not finite (NaN or Inf): ",
      "closure=", work_.closure.value(), " step=", next_step(),
      " loss=", step.result.loss_sum / static_cast<double>(batch.size),
      " examples=", absl::StrJoin(named, ","),
      examples.size() > named.size() ? absl::StrCat(",… (", examples.size(), " in the batch)")
                                     : "")));
}

absl::StatusOr<std::string> TrainingRun::CheckFinite(const ReadyBatch& batch,
                                                     ComputeJob::Step* step) {
  StepResult& result = step->result;
  if (!step->too_large && result.finite && step->overflowed.empty()) return "";
  std::string reason = "overflow";
  if (step->too_large) {
    env_.logger->Info(
        absl::StrCat(
            "update skipped, because its scaled gradients exceed the range of float16; the "
            "loss scale is halved: loss_scale=",
            step->loss_scale, " closure=", work_.closure.value(), " step=", next_step()),
        About());
    if (!std::isfinite(result.loss_sum)) result.loss_sum = 0;
  } else {
    const absl::Status error = NotFinite(batch, *step);
    if (!options_.skip_not_finite) return error;
    env_.logger->Warning(absl::StrCat("update skipped: ", error.message()), About());
    if (!result.finite) {
      reason = "nan";
      result.loss_sum = 0;
    }
  }
  measures_.metrics->skips.Add();
  for (MetricSum& metric : result.metrics) metric.sum = std::isfinite(metric.sum) ? metric.sum : 0;
  return reason;
}

void TrainingRun::OnStep(const BatchFeed::Taken& taken, absl::StatusOr<ComputeJob::Step> step) {
  if (!step.ok())
    return env_.owner->FailCompute(AboutStep(step.status(), work_.closure, next_step()));
  options_.device->AddStep(*step);
  absl::StatusOr<std::string> skip_reason = CheckFinite(*taken.batch, &*step);
  if (!skip_reason.ok()) return env_.owner->Fail(skip_reason.status());
  Update update;
  update.skip_reason = *std::move(skip_reason);
  update.dense = DenseTargets();
  update.gradients = std::move(step->gradients);
  if (taken.rows) AddGradientsOfRows(taken.rows->slots, *step->row_gradients, &update);
  RecordStep(static_cast<std::uint64_t>(taken.batch->size), step->result.loss_sum);
  AddMetrics(step->result.metrics, &measured_);
  PushUpdate(std::move(update));
}

void TrainingRun::FillDone(v1::Done* done) {
  FillSums(env_.job->spec()->model.metrics, measured_, /*with_counts=*/false, &metrics_);
  *done->mutable_metrics() = std::move(metrics_);
  FillTouchedLess(done);
}

}  // namespace evergrad::worker

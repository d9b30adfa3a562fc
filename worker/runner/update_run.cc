#include "worker/runner/update_run.h"

#include <algorithm>
#include <chrono>

namespace evergrad::worker {

void UpdateRun::Start() {
  OpenExchange();
  OnExchange();
}

void UpdateRun::Observe(const metrics::Histogram& seconds, MonoTime since) const {
  if (env_.clock != nullptr)
    seconds.Observe(std::chrono::duration<double>(env_.clock->Now() - since).count());
}

void UpdateRun::WantPulls(std::uint64_t count) {
  exchange_->WantPulls(count);
  for (; pulls_wanted_ < count; ++pulls_wanted_) wanted_at_.push_back(Now());
}

// The first pull was requested when the exchange was opened, which is in the same turn as the first
// call of this function. It is not requested if the previous closure has already pulled the values.
void UpdateRun::CountPulls() {
  if (pulls_wanted_ == 0) {
    pulls_wanted_ = 1;
    if (!exchange_->PullsDone(1)) wanted_at_.push_back(Now());
  }
  while (!wanted_at_.empty() && exchange_->PullsDone(pulls_wanted_ - wanted_at_.size() + 1)) {
    Observe(measures_.metrics->pull_seconds, wanted_at_.front());
    wanted_at_.pop_front();
  }
}

void UpdateRun::OnExchange() {
  CountPulls();
  if (finishing() || GiveBackIfPaused() || !CountSettledSteps() || paused_ || computing_) return;
  const bool settled = settled_steps_ == next_step_;
  if (draining_ && settled && next_step_ < steps_)
    return env_.owner->GiveUp({.reason = "draining"});
  if (next_step_ == steps_) {
    if (settled && env_.book->MayFinish(true)) Finish();
    return;
  }
  if (InputReady() && exchange_->PullsDone(next_step_ + 1)) BeginStep();
}

// Returns false if the failpoint worker.after_push delays the run, or if the run has already
// continued inside this call. In both cases the caller must do nothing more.
bool UpdateRun::CountSettledSteps() {
  while (!paused_ && settled_steps_ < next_step_ &&
         env_.book->Unsettled(UpdateIndex(settled_steps_)).empty()) {
    ++settled_steps_;
    Observe(measures_.metrics->push_seconds, pushed_at_.front());
    pushed_at_.pop_front();
    if (env_.failpoints == nullptr || !env_.failpoints->AnyArmed()) continue;
    paused_ = true;
    PassFailpoint("worker.after_push", [this] {
      paused_ = false;
      OnExchange();
    });
    return false;
  }
  return true;
}

void UpdateRun::BeginStep() {
  computing_ = true;
  begun_at_ = Now();
  AtFailpoint(env_.failpoints, "worker.step", env_.control,
              IfRunning([this](const absl::Status& hit) {
                if (!hit.ok()) return env_.owner->Fail(AboutStep(hit, work_.closure, next_step_));
                ComputeStep();
              }));
}

void UpdateRun::PullForSecondStep() {
  if (pipeline() != 1 || next_step_ > 0 || steps_ <= 1) return;
  WantPulls(2);
  exchange_->Flush();
}

void UpdateRun::PushUpdate(Update update) {
  Observe(measures_.metrics->step_seconds, begun_at_);
  PassFailpoint("worker.before_push", [this, update = std::move(update)] {
    if (next_step_ == 0)
      env_.logger->Debug(
          absl::StrCat("first push of an attempt is sent: attempt=", work_.attempt.ToString()),
          About());
    PushStep(update);
  });
}

std::vector<Exchange::Gradient> UpdateRun::GradientsOf(const Update& update) const {
  const bool skipped = !update.skip_reason.empty();
  std::vector<Exchange::Gradient> gradients;
  gradients.reserve(update.dense.size() + update.parts.size());
  for (const ShardId shard : update.dense)
    gradients.push_back(
        {shard, skipped ? tensor::SharedBytes{} : GradientBuffer::Slice(update.gradients, shard)});
  for (const SlotRows::OfShard* part : update.parts) {
    if (skipped) {
      gradients.push_back({part->shard, {}});
      continue;
    }
    const std::span<const std::byte> bytes(update.row_gradients->data() + part->first_byte,
                                           part->bytes);
    gradients.push_back({part->shard, {update.row_gradients, bytes}, update.slots, part});
  }
  return gradients;
}

void UpdateRun::PushStep(const Update& update) {
  const UpdateIndex index(next_step_);
  std::vector<Exchange::Gradient> gradients = GradientsOf(update);
  std::vector<ShardId> shards;
  shards.reserve(gradients.size());
  for (const Exchange::Gradient& gradient : gradients) shards.push_back(gradient.shard);
  env_.book->Expect(index, shards);
  exchange_->Push(index, env_.job->plan()->GlobalStep(work_.closure, index), std::move(gradients),
                  update.skip_reason);
  pushed_at_.push_back(Now());
  ++next_step_;
  // The values of step next_step_ + pipeline are pulled with this push.
  const std::uint64_t pulls = next_step_ + pipeline() + 1;
  if (pulls <= steps_) {
    WantPulls(pulls);
  } else if (next_step_ == steps_ && AnotherQueued() && MayPullAhead()) {
    WantPulls(steps_ + 1);
    pulled_ahead_ = env_.book->map().version;
  }
  exchange_->Flush();
  EndStep();
}

void UpdateRun::EndStep() {
  computing_ = false;
  OnExchange();
}

bool UpdateRun::AnotherQueued() const {
  for (const AttemptBook::Held& held : env_.book->HeldForHello()) {
    if (!held.begun) return held.work.kind == WorkKind::kTrain;
  }
  return false;
}

void UpdateRun::OnReported() {
  if (pulled_ahead_ && *pulled_ahead_ == env_.book->map().version &&
      exchange_->PullsDone(steps_ + 1))
    env_.job->pulled_ahead = pulled_ahead_;
}

std::vector<ShardId> UpdateRun::Targets(std::vector<ShardId> shards) const {
  std::erase_if(shards, [this](ShardId shard) { return !IsTarget(shard); });
  return shards;
}

// This function runs on the control executor, because the compute executor must compute the next
// step.
void UpdateRun::AddGradientsOfRows(const std::shared_ptr<const SlotRows>& slots,
                                   const std::vector<tensor::AlignedBuffer>& gradients,
                                   Update* update) const {
  update->slots = slots;
  update->row_gradients = std::make_shared<const tensor::AlignedBuffer>(slots->Gather(gradients));
  for (const SlotRows::OfShard& part : slots->parts()) {
    if (IsTarget(part.shard)) update->parts.push_back(&part);
  }
}

void UpdateRun::CountStep(std::uint64_t examples) {
  metrics_.set_examples(metrics_.examples() + examples);
  metrics_.set_steps(metrics_.steps() + 1);
  ++env_.job->steps;
  env_.job->examples += examples;
  measures_.metrics->steps.Add();
  measures_.metrics->examples.Add(examples);
}

void UpdateRun::RecordStep(std::uint64_t examples, double loss_sum) {
  CountStep(examples);
  metrics_.set_loss_sum(metrics_.loss_sum() + loss_sum);
  const double loss = loss_sum / static_cast<double>(std::max<std::uint64_t>(examples, 1));
  v1::StepRecord record;
  record.set_global_step(env_.job->plan()->GlobalStep(work_.closure, UpdateIndex(next_step_)));
  record.set_loss(loss);
  record.set_examples(static_cast<std::uint32_t>(examples));
  *metrics_.add_step_records() = record;
  measures_.steps->Add(std::move(record));
  measures_.metrics->loss.Set(loss);
}

void UpdateRun::FillTouchedLess(v1::Done* done) const {
  if (!work_.all_targets) return;
  v1::TouchedLess& touched = *done->mutable_touched();
  for (const auto& [shard, updates] : env_.book->TouchedLess()) {
    touched.add_shards(shard);
    touched.add_updates(updates);
  }
}

}  // namespace evergrad::worker

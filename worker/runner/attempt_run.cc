#include "worker/runner/attempt_run.h"

namespace evergrad::worker {

void AttemptRun::OnMap() {
  if (exchange_) exchange_->OnMap();
}

void AttemptRun::Recall() {
  recalled_ = true;
  GiveBackIfPaused();
}

void AttemptRun::Drain(std::chrono::milliseconds step_max) {
  draining_ = true;
  const auto give_up = [this] { env_.owner->GiveUp({.reason = "draining"}); };
  if (!finishing_ && work_.kind != WorkKind::kTrain) return give_up();
  env_.control->PostAfter(step_max, IfRunning(give_up));
  OnExchange();
}

bool AttemptRun::GiveBackIfPaused() {
  if (!exchange_ || finishing_ || !(recalled_ || draining_) || !exchange_->WaitsForRoom())
    return false;
  env_.owner->GiveUp(
      {.reason = recalled_ ? "recalled while its pushes waited for memory" : "draining"});
  return true;
}

void AttemptRun::FillProgress(v1::WorkerProgress* progress) const {
  progress->set_state(exchange_ && exchange_->WaitsForRoom() ? "paused" : StateName(work_.kind));
  progress->set_running_closure(work_.closure.value());
  *progress->mutable_running_attempt() = client::ToProto(work_.attempt);
  progress->set_running_step(Progressed());
  if (!exchange_) return;
  progress->set_waiting_for(exchange_->WaitingFor());
  exchange_->FillUnreached(progress);
}

void AttemptRun::OpenExchange() {
  Exchange::Events events;
  events.on_progress = IfRunning([this] { OnExchange(); });
  events.on_dropped = IfRunning([this](std::optional<ShardId> superseded_by) {
    env_.owner->GiveUp({.reason = superseded_by
                                      ? absl::StrCat("superseded by a later attempt: shard=",
                                                     superseded_by->value())
                                      : "refused by a server",
                        .superseded_by = superseded_by});
  });
  events.on_failed = IfRunning([this](const absl::Status& status) { env_.owner->Fail(status); });
  exchange_ =
      std::make_shared<Exchange>(env_.exchange, env_.job->layout(), work_, std::move(events));
  const std::optional<MapVersion> ahead = std::exchange(env_.job->pulled_ahead, std::nullopt);
  if (work_.kind == WorkKind::kTrain && ahead == env_.book->map().version)
    return exchange_->HavePulls(1);
  exchange_->WantPulls(1);
  exchange_->Flush();
}

void AttemptRun::Finish() {
  finishing_ = true;
  AtFailpoint(env_.failpoints, "worker.before_done", env_.control,
              IfRunning([this](const absl::Status& hit) {
                // If the message is dropped, the report is kept and sent in the next session.
                const bool dropped = absl::IsAborted(hit);
                if (!hit.ok() && !dropped) return env_.owner->Fail(hit);
                env_.owner->ReportDone(/*send_now=*/!dropped);
              }));
}

absl::Status AboutStep(const absl::Status& status, ClosureId closure, std::uint32_t step) {
  const absl::Status named(
      status.code(), absl::StrCat(status.message(), " closure=", closure.value(), " step=", step));
  return BlameOf(status) == Blame::kUser ? UserError(named) : named;
}

}  // namespace evergrad::worker

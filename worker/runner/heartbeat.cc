#include "worker/runner/heartbeat.h"

namespace evergrad::worker {
namespace {

constexpr std::size_t kWaitingForBytesMax = 1024;

}  // namespace

void Heartbeat::BeginJob() {
  ++stint_;
  const client::ParameterClient::Stats stats = client_->stats();
  bytes_before_job_ = stats.bytes_sent + stats.bytes_received;
}

v1::WorkerProgress Heartbeat::Take(const Present& present) {
  v1::WorkerProgress progress;
  progress.set_state("idle");
  progress.set_computing(present.computing);
  progress.set_waiting_for(present.waiting_for);
  if (present.run != nullptr) {
    present.run->FillProgress(&progress);
  } else if (present.next != nullptr) {
    // A Done is sent between two closures. If the next closure is already granted, the worker is
    // not idle, so the state is that of the next closure. The heartbeat names no running attempt,
    // so that a death of the worker at this moment does not count against the next attempt.
    progress.set_state(StateName(present.next->kind));
    progress.set_running_closure(present.next->closure.value());
  }
  if (present.run == nullptr && !present.waiting_for.empty()) progress.set_state("waiting");
  // A heartbeat larger than a message of the session would not be sent, and the worker's lease
  // would run out. Therefore texts from servers are truncated.
  progress.set_waiting_for(client::CleanText(progress.waiting_for(), kWaitingForBytesMax));
  const client::ParameterClient::Stats stats = client_->stats();
  progress.set_bytes_sent(stats.bytes_sent);
  progress.set_bytes_received(stats.bytes_received);
  if (present.job != nullptr) {
    present.job->FillProgress(&progress);
    progress.set_job_stint(stint_);
    progress.set_job_bytes(stats.bytes_sent + stats.bytes_received - bytes_before_job_);
  }
  device_->WarnOnce(logger_, present.about);
  device_->Fill(&progress);
  steps_->MoveTo(&progress);
  return progress;
}

}  // namespace evergrad::worker

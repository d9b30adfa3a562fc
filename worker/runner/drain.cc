#include "worker/runner/drain.h"

#include <utility>

namespace evergrad::worker {

bool Drain::Begin(std::function<void()> done) {
  if (std::exchange(begun_, true)) return false;
  done_ = std::move(done);
  if (!connected_) EndWithoutSession();
  return true;
}

void Drain::SetSession(bool connected) {
  connected_ = connected;
  if (begun_ && !connected) EndWithoutSession();
}

// Waits as long as the pushes of a step need to be settled while the servers run, and then drops
// the running attempt. A longer wait would be useless if the servers were told to end at the same
// time as this worker.
void Drain::EndWithoutSession() {
  env_.control->PostAfter(env_.no_session_max, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr || self->connected_) return;
    self->env_.give_up();
    self->Finish();
  });
}

void Drain::Check(bool attempt_runs, bool answers_missing) {
  if (done_ == nullptr || attempt_runs) return;
  const auto finish = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Finish();
  };
  if (!answers_missing) {
    env_.control->Post(finish);
  } else if (!std::exchange(waits_for_answers_, true)) {
    env_.control->PostAfter(env_.answers_max, finish);
  }
}

void Drain::Finish() {
  if (done_) std::exchange(done_, nullptr)();
}

}  // namespace evergrad::worker

// The progress watchdog of one side of a data stream (rule 8). With outstanding work and no byte in
// either direction, it sends a PING after a third of the limit, and ends the stream after the whole
// limit. The answer to the PING distinguishes a request that waits long at the server from a peer
// that has stopped. Pure, not thread-safe.
#pragma once

#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "common/time/clock.h"

namespace evergrad::transport {

class Outbox;

class Liveness {
 public:
  explicit Liveness(MonoTime limit) : limit_(limit) {}

  enum class Step { kNothing, kSendPing, kDead };

  // Work was added when there was none, so the silence before it does not count.
  void OnWork(MonoTime now) { last_ = std::max(last_, now); }
  // Bytes have been sent.
  void OnSent(MonoTime now) { last_ = now; }
  void OnReceived(MonoTime now) {
    last_ = now;
    ping_sent_ = false;
  }
  Step Tick(MonoTime now) {
    if (now < Due()) return Step::kNothing;
    // The tick is late by more than a step. This process itself was stopped or starved, so the peer
    // gets its full time again.
    if (now > Due() + limit_ / 3) {
      last_ = now;
      ping_sent_ = false;
      return Step::kNothing;
    }
    if (ping_sent_) return Step::kDead;
    ping_sent_ = true;
    return Step::kSendPing;
  }
  // Performs the check, and may put a PING into the outbox. Unavailable means that the caller must
  // end the stream.
  absl::Status Tick(MonoTime now, Outbox* outbox);
  MonoTime Due() const { return last_ + (ping_sent_ ? limit_ : limit_ / 3); }

 private:
  const MonoTime limit_;
  MonoTime last_{0};
  bool ping_sent_ = false;
};

}  // namespace evergrad::transport

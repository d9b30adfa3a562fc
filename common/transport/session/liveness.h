// The progress watchdog of one side of a data stream (rule 8 in transport.h). With outstanding work
// and no byte in either direction, the watchdog sends a PING after a third of the limit, and ends
// the stream after the whole limit. A PONG shows that the peer is alive, even if it holds a request
// for long. Pure, not thread-safe.
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

  // Reports the first work after a time without work, so that the silence before this work does not
  // count.
  void OnWork(MonoTime now) { last_ = std::max(last_, now); }
  // Reports that bytes have been sent.
  void OnSent(MonoTime now) { last_ = now; }
  void OnReceived(MonoTime now) {
    last_ = now;
    ping_sent_ = false;
  }
  Step Tick(MonoTime now) {
    if (now < Due()) return Step::kNothing;
    // If the tick is late by more than a third of the limit, this process itself was stopped or got
    // no CPU time. The peer then gets the whole limit again.
    if (now > Due() + limit_ / 3) {
      last_ = now;
      ping_sent_ = false;
      return Step::kNothing;
    }
    if (ping_sent_) return Step::kDead;
    ping_sent_ = true;
    return Step::kSendPing;
  }
  // Checks the progress, and may put a PING into the outbox. Unavailable means that the caller must
  // end the stream.
  absl::Status Tick(MonoTime now, Outbox* outbox);
  MonoTime Due() const { return last_ + (ping_sent_ ? limit_ : limit_ / 3); }

 private:
  const MonoTime limit_;
  MonoTime last_{0};
  bool ping_sent_ = false;
};

}  // namespace evergrad::transport

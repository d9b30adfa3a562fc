// The progress watchdog of one side of a data stream (rule 8): with work outstanding and no byte in
// either direction for a third of the limit it asks for a PING, and for the whole limit it gives
// the stream up. A request that waits long at a gate is thereby told from a peer that is stopped.
// Pure, not thread-safe.
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

  // Work came up after there was none: the silence before it does not count.
  void OnWork(MonoTime now) { last_ = std::max(last_, now); }
  // Bytes have left.
  void OnSent(MonoTime now) { last_ = now; }
  void OnReceived(MonoTime now) {
    last_ = now;
    ping_sent_ = false;
  }
  Step Tick(MonoTime now) {
    if (now < Due()) return Step::kNothing;
    // Late by more than a step: it was we who stood still (a stopped process, a starved machine),
    // so the peer gets its time again.
    if (now > Due() + limit_ / 3) {
      last_ = now;
      ping_sent_ = false;
      return Step::kNothing;
    }
    if (ping_sent_) return Step::kDead;
    ping_sent_ = true;
    return Step::kSendPing;
  }
  // The same done: a PING into the outbox. Unavailable: the stream is to be given up.
  absl::Status Tick(MonoTime now, Outbox* outbox);
  MonoTime Due() const { return last_ + (ping_sent_ ? limit_ : limit_ / 3); }

 private:
  const MonoTime limit_;
  MonoTime last_{0};
  bool ping_sent_ = false;
};

}  // namespace evergrad::transport

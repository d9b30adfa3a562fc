// The updates that are in a shard's state (LEDGER lines 7, 9, 10, 12, 24). A pure state machine: no
// clock, no I/O.
//
// A Ledger belongs to its Shard, and only the shard's executor calls it. Every snapshot and every
// move contains the ledger.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/base/ids.h"
#include "common/base/interval_set.h"

namespace evergrad::ps_server {

enum class Admission {
  kAdmit,       // the update is not in the state and may be applied; then call Record()
  kDuplicate,   // the update is in the state
  kRefused,     // the closure was cancelled
  kSuperseded,  // a higher attempt of the closure has been seen
};

class Ledger {
 public:
  // Returns the admission by LEDGER lines 9 and 10. A DUPLICATE raises open[c].attempt to
  // `attempt`. No other answer changes anything, so a push that is admitted and then fails its
  // checks leaves no trace. The caller must check update < kUpdatesPerClosureMax first.
  Admission Check(ClosureId closure, UpdateIndex update, Attempt attempt);
  // Sets the update's bit, and raises open[c].attempt to `attempt` (LEDGER line 12). A repeat
  // changes nothing.
  void Record(ClosureId closure, UpdateIndex update, Attempt attempt);
  // Adds the closures to `done` and `refused`, and removes open[c] of each of them (LEDGER line
  // 24). Returns true if `done` or `refused` grew. A repeat changes nothing.
  bool Close(const IntervalSet& done, const IntervalSet& refused);

  struct Open {
    Attempt attempt;                  // the highest attempt that was seen
    std::vector<std::uint64_t> bits;  // update u has bit u % 64 of word u / 64
    bool Test(std::uint32_t u) const {
      return u / 64 < bits.size() && (bits[u / 64] >> (u % 64) & 1);
    }
    friend bool operator==(const Open&, const Open&) = default;
  };
  // Returns the ledger of a snapshot. Members of `done` and `refused` are removed from `open`.
  static Ledger Restored(const IntervalSet& done, const IntervalSet& refused,
                         std::map<ClosureId, Open> open);
  const IntervalSet& done() const { return done_; }
  const IntervalSet& refused() const { return refused_; }
  const std::map<ClosureId, Open>& open() const { return open_; }
  // Returns whether the update is recorded in `open`, or its closure is in `done`.
  bool Has(ClosureId closure, UpdateIndex update) const;
  // Returns a copy for a new job (LEDGER line 28). The attempts of the copy begin again:
  // open[*].attempt = (0,0).
  Ledger WithoutAttempts() const;
  // Returns the memory in bytes, for the bound of LEDGER line 31 and for metrics.
  std::uint64_t MemoryBytes() const;
  friend bool operator==(const Ledger&, const Ledger&) = default;

 private:
  IntervalSet done_, refused_;
  std::map<ClosureId, Open> open_;
};

}  // namespace evergrad::ps_server

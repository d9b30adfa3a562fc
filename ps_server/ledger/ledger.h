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
  // Decides whether the update may be applied (LEDGER lines 9 and 10). The answer kDuplicate raises
  // the highest attempt that the ledger has seen of the closure (Open::attempt) to `attempt`. The
  // other answers change nothing, so a push that is admitted and then fails its checks leaves no
  // trace. The caller must check update < kUpdatesPerClosureMax first.
  Admission Check(ClosureId closure, UpdateIndex update, Attempt attempt);
  // Sets the update's bit in the entry of its closure, and raises Open::attempt of this entry to
  // `attempt` (LEDGER line 12). A second call with the same arguments changes nothing.
  void Record(ClosureId closure, UpdateIndex update, Attempt attempt);
  // Adds the closures to the ledger's sets of done and refused closures, and removes their entries
  // with the bits of their updates (LEDGER line 24). Returns true if a set grew. A second call with
  // the same arguments changes nothing.
  bool Close(const IntervalSet& done, const IntervalSet& refused);

  struct Open {
    Attempt attempt;                  // the highest attempt that was seen
    std::vector<std::uint64_t> bits;  // update u has bit u % 64 of word u / 64
    bool Test(std::uint32_t u) const {
      return u / 64 < bits.size() && (bits[u / 64] >> (u % 64) & 1);
    }
    friend bool operator==(const Open&, const Open&) = default;
  };
  // Returns the ledger that was read from a snapshot. A closure in `done` or `refused` gets no
  // entry, even if `open` contains it.
  static Ledger Restored(const IntervalSet& done, const IntervalSet& refused,
                         std::map<ClosureId, Open> open);
  const IntervalSet& done() const { return done_; }
  const IntervalSet& refused() const { return refused_; }
  const std::map<ClosureId, Open>& open() const { return open_; }
  // Returns whether the update is recorded in `open`, or its closure is in `done`.
  bool Has(ClosureId closure, UpdateIndex update) const;
  // Returns a copy for a new job (LEDGER line 28). In the copy, the highest attempt of every open
  // closure is (0,0), because a new job numbers its attempts from the beginning.
  Ledger WithoutAttempts() const;
  // Returns the approximate memory of the ledger in bytes, for metrics and for the limit of a
  // snapshot's size (LEDGER line 31).
  std::uint64_t MemoryBytes() const;
  friend bool operator==(const Ledger&, const Ledger&) = default;

 private:
  IntervalSet done_, refused_;
  std::map<ClosureId, Open> open_;
};

}  // namespace evergrad::ps_server

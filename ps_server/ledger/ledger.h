// Which updates are in a shard's state (LEDGER lines 7, 9, 10, 12, 24). A pure state machine: no
// clock, no I/O.
//
// Owned by its Shard and called from the shard's executor only. Part of every snapshot, move and
// log.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/base/ids.h"
#include "common/base/interval_set.h"
#include "common/fault/mutant.h"

namespace evergrad::ps_server {

enum class Admission {
  kAdmit,       // not in the state: may be applied, then Record()
  kDuplicate,   // in the state
  kRefused,     // its closure was cancelled
  kSuperseded,  // a higher attempt of its closure has been seen
};

class Ledger {
 public:
  explicit Ledger(fault::Mutant mutant = fault::Mutant::kNone) : mutant_(mutant) {}

  // Lines 9 and 10. Changes nothing but open[c].attempt, which a DUPLICATE raises to `attempt`;
  // kAdmit changes nothing, so a push that fails its checks afterwards leaves no trace. update <
  // kUpdatesPerClosureMax (the caller checks outside numbers).
  Admission Check(ClosureId closure, UpdateIndex update, Attempt attempt);
  // Line 12: open[c].attempt = max, bit u.
  void Record(ClosureId closure, UpdateIndex update, Attempt attempt);
  // Line 24: done and refused grow, open[c] of their members is freed. Returns whether anything
  // changed.
  bool Close(const IntervalSet& done, const IntervalSet& refused);

  struct Open {
    Attempt attempt;
    std::vector<std::uint64_t> bits;  // bit u % 64 of word u / 64
    bool Test(std::uint32_t u) const {
      return u / 64 < bits.size() && (bits[u / 64] >> (u % 64) & 1);
    }
    friend bool operator==(const Open&, const Open&) = default;
  };
  // As it was in a snapshot. What is in done or refused is not open.
  static Ledger Restored(IntervalSet done, IntervalSet refused, std::map<ClosureId, Open> open,
                         fault::Mutant mutant = fault::Mutant::kNone);
  const IntervalSet& done() const { return done_; }
  const IntervalSet& refused() const { return refused_; }
  const std::map<ClosureId, Open>& open() const { return open_; }
  // Whether (c, u) is recorded in `open` or c in `done`.
  bool Has(ClosureId closure, UpdateIndex update) const;
  // Line 28: as a new job finds it, whose attempts begin anew: open[*].attempt = (0,0).
  Ledger WithoutAttempts() const;
  // What is left when open closures are forgotten: only a mutant does.
  Ledger WithoutOpen() const;
  // Bytes that it takes, for line 31's bound and metrics.
  std::uint64_t MemoryBytes() const;
  friend bool operator==(const Ledger& a, const Ledger& b) {
    return a.done_ == b.done_ && a.refused_ == b.refused_ && a.open_ == b.open_;
  }

 private:
  fault::Mutant mutant_;
  IntervalSet done_, refused_;
  std::map<ClosureId, Open> open_;
};

}  // namespace evergrad::ps_server

// The rules by which a Ledger decides (LEDGER lines 7, 9, 10, 24, 28 and 30). Each rule is a
// predicate of its arguments alone. Pure: no state, no thread, no error. ledger.cc is the only
// caller.
//
// tests/mutants compiles ledger.cc a second time with its own copy of the rules, in which a test
// can break each rule. A rule inside ledger.cc itself would escape this test.
#pragma once

#include <algorithm>
#include <map>

#include "ps_server/ledger/ledger.h"

namespace evergrad::ps_server {

struct LedgerRules {
  // LEDGER 7, 9: a closure is done only if a Close lists it as done.
  static bool IsDone(const IntervalSet& done, ClosureId c) { return done.Contains(c.value()); }
  // LEDGER 9: a cancelled closure accepts no update.
  static bool IsRefused(const IntervalSet& refused, ClosureId c) {
    return refused.Contains(c.value());
  }
  // LEDGER 10: once an attempt of a closure was seen, updates of lower attempts are refused.
  static bool IsSuperseded(Attempt attempt, Attempt seen) { return seen > attempt; }
  // LEDGER 7, 10: each update of an open closure has its own bit.
  static bool IsRecorded(const Ledger::Open& open, UpdateIndex u) { return open.Test(u.value()); }
  // LEDGER 10: a duplicate also counts as seen, so that it makes the ledger refuse lower attempts.
  static Attempt AfterDuplicate(Attempt seen, Attempt attempt) { return std::max(seen, attempt); }
  // LEDGER 24, 30: the bitmap of an ended closure is removed.
  static bool HasEnded(const IntervalSet& done, const IntervalSet& refused, ClosureId c) {
    return done.Contains(c.value()) || refused.Contains(c.value());
  }
  // LEDGER 28: a new job counts its attempts from the beginning and keeps the recorded updates.
  static std::map<ClosureId, Ledger::Open> OpenInNewJob(std::map<ClosureId, Ledger::Open> open) {
    for (auto& [c, o] : open) o.attempt = Attempt{};
    return open;
  }
};

}  // namespace evergrad::ps_server

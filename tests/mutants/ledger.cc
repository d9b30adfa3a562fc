// ps_server/ledger/ledger.cc, compiled with rules that a mutant can break.
#include <utility>
#include <vector>

#include "ps_server/ledger/ledger_rules.h"
#include "tests/mutants/mutant.h"

namespace evergrad::ps_server {

using mutants::IsActive;
using mutants::Mutant;

struct BreakableLedgerRules : LedgerRules {
  static bool IsDone(const IntervalSet& done, ClosureId c) {
    if (done.empty() || !(IsActive(Mutant::kPrune) || IsActive(Mutant::kDoneMergesHoles)))
      return LedgerRules::IsDone(done, c);
    const std::vector<IntervalSet::Interval> all = done.Intervals();
    const auto first = IsActive(Mutant::kPrune) ? all.back() : all.front();
    return c.value() >= first.begin && c.value() < all.back().end;
  }
  static bool IsRefused(const IntervalSet& refused, ClosureId c) {
    return !IsActive(Mutant::kRefusedAdmits) && LedgerRules::IsRefused(refused, c);
  }
  static bool IsSuperseded(Attempt attempt, Attempt seen) {
    return !IsActive(Mutant::kNoAttemptFence) && LedgerRules::IsSuperseded(attempt, seen);
  }
  static bool IsRecorded(const Ledger::Open& open, UpdateIndex u) {
    if (IsActive(Mutant::kLedgerOff)) return false;
    if (IsActive(Mutant::kWatermarkOnly)) {
      for (std::uint32_t later = u.value(); later < open.bits.size() * 64; ++later) {
        if (open.Test(later)) return true;
      }
      return false;
    }
    return LedgerRules::IsRecorded(open, u);
  }
  static Attempt AfterDuplicate(Attempt seen, Attempt attempt) {
    return IsActive(Mutant::kDuplicateLowersNoBar) ? seen
                                                   : LedgerRules::AfterDuplicate(seen, attempt);
  }
  static bool HasEnded(const IntervalSet& done, const IntervalSet& refused, ClosureId c) {
    return !IsActive(Mutant::kOpenNotFreed) && LedgerRules::HasEnded(done, refused, c);
  }
  static std::map<ClosureId, Ledger::Open> OpenInNewJob(std::map<ClosureId, Ledger::Open> open) {
    if (IsActive(Mutant::kResumeForgetsOpen)) return {};
    if (IsActive(Mutant::kResumeKeepsAttempts)) return open;
    return LedgerRules::OpenInNewJob(std::move(open));
  }
};

}  // namespace evergrad::ps_server

#define LedgerRules BreakableLedgerRules
#include "ps_server/ledger/ledger.cc"

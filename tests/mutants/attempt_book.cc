// worker/runner/attempt_book.cc, compiled with rules that a mutant can break.
#include "tests/mutants/mutant.h"
#include "worker/runner/attempt_rules.h"

namespace evergrad::worker {

using mutants::IsActive;
using mutants::Mutant;

struct BreakableAttemptRules : AttemptRules {
  static MapVersion V0(MapVersion at_begin, MapVersion at_end) {
    return IsActive(Mutant::kV0AtEnd) ? at_end : AttemptRules::V0(at_begin, at_end);
  }
  static bool Settles(PushAnswer answer) {
    return AttemptRules::Settles(answer) ||
           (answer == PushAnswer::kStale && IsActive(Mutant::kStaleSettles));
  }
  static bool MayReport(const std::map<std::uint32_t, std::set<ShardId>>& unsettled) {
    if (!IsActive(Mutant::kDoneBeforeSettled)) return AttemptRules::MayReport(unsettled);
    std::size_t left = 0;
    for (const auto& [update, shards] : unsettled) left += shards.size();
    return left <= 2;
  }
  static bool KeepsDone() { return !IsActive(Mutant::kDoneNotKept) && AttemptRules::KeepsDone(); }
  static bool DropsUnnamed() {
    return !IsActive(Mutant::kKeepsUnnamed) && AttemptRules::DropsUnnamed();
  }
};

}  // namespace evergrad::worker

#define AttemptRules BreakableAttemptRules
#include "worker/runner/attempt_book.cc"

// The rules by which an AttemptBook decides. Each rule is a predicate of its arguments alone. A
// number in brackets is a line of LEDGER (14 to 16 and 26). The rules are pure functions, and
// attempt_book.cc is their only caller.
//
// tests/mutants compiles attempt_book.cc a second time with its own rules, each of which a test can
// break. A rule that is inlined into attempt_book.cc would escape those tests.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "worker/runner/attempt_book.h"

namespace evergrad::worker {

struct AttemptRules {
  // [14] V0 is the version of the map under which the attempt began.
  static MapVersion V0(MapVersion at_begin, MapVersion /*at_end*/) { return at_begin; }
  // [15] Returns whether the answer means that the shard has the update.
  static bool Settles(PushAnswer answer) {
    return answer == PushAnswer::kApplied || answer == PushAnswer::kDuplicate;
  }
  // [16] A Done is sent only after the last push was settled.
  static bool MayReport(const std::map<std::uint32_t, std::set<ShardId>>& unsettled) {
    return unsettled.empty();
  }
  // [16] A Done is kept until it is answered.
  static bool KeepsDone() { return true; }
  // [26] The message Registered names the attempts that the worker may keep. The coordinator has
  // superseded every other attempt, so the worker drops it.
  static bool DropsUnnamed() { return true; }
};

}  // namespace evergrad::worker

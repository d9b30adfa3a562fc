// The rules by which a ClosureBook and its parts decide. Each rule is a function of its arguments
// alone. A number in brackets is a line of LEDGER (19 to 27 and 29). The functions have no state
// and cannot fail. The callers are closure_book.cc, durable_book.cc, attempt_table.cc and
// close_tracker.cc.
//
// tests/mutants compiles these sources a second time with its own rules, and its tests break one
// rule at a time. A rule that was written inline in one of the sources or their headers would
// escape these tests.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/closures/durable_state.h"

namespace evergrad::coordinator {

struct ClosureRules {
  // [19] Returns whether the shard was rolled back after the attempt had begun with the map of
  // version V0.
  static bool RolledBackSince(MapVersion start, MapVersion v0) { return start > v0; }
  // [19] Only the current attempt of a closure may end it.
  static bool IsCurrent(Attempt attempt, Attempt current) { return attempt == current; }
  // [19] A closure's metrics count at its first success, and not when a repair runs it again.
  static bool CountsMetrics(bool all_targets) { return all_targets; }
  // [19, 26] An attempt that used a map which the journal forgot is void, because this map may have
  // named an owner other than the present one.
  static bool ForgottenMapIsVoid() { return true; }
  // [19, 20] A cancelled closure cannot succeed.
  static bool CancelEndsAttempt() { return true; }
  // [20] A closure that succeeded cannot be cancelled.
  static bool SuccessIsFinal() { return true; }
  // [20] The user learns of the end of a cancellation only when every owner refuses the closure.
  static bool CancelAwaitsOwners() { return true; }
  // [20b] If the repair of a closure fails, the closure is lost at the shard.
  static bool FailedRepairIsLost() { return true; }

  // [21] A rolled-back shard lacks the closures that succeeded, were not in the snapshot and are
  // not lost.
  static IntervalSet TodoAfterRollback(const IntervalSet& succeeded, const IntervalSet& done,
                                       const IntervalSet& lost) {
    return Without(succeeded, done, lost);
  }
  // [21] The shard gets a new epoch, and a start above the versions of all maps that named the
  // former owner.
  static ShardOwner RolledBack(const ShardOwner& /*former*/, const std::string& server,
                               ShardEpoch epoch, MapVersion version) {
    return {server, epoch, version};
  }
  // [21] An Assign tells the server which closures the shard must refuse.
  static bool AssignCarriesRefused() { return true; }
  // [22] The shard gets a new epoch under the same start, because no update is lost.
  static ShardOwner Moved(const ShardOwner& former, const std::string& server, ShardEpoch epoch,
                          MapVersion /*version*/) {
    return {server, epoch, former.start};
  }
  // [23] The number of open closures is limited.
  static bool MayOpenOneMore(std::uint64_t open, std::uint64_t open_max) { return open < open_max; }
  // [24] Returns the closures that a Close reports as done at a shard.
  static IntervalSet DoneAt(const IntervalSet& succeeded, const IntervalSet& todo,
                            const IntervalSet& lost) {
    return Without(succeeded, todo, lost);
  }
  // [24] If a server answers a Close with `ignored`, the next Close holds all closures.
  static bool WholeAfterIgnored() { return true; }

  // [25] Returns whether the epoch is of the life directly before ours. If the epoch is older, a
  // life between that life and ours may have sent maps that name another owner, with a version
  // above the epoch's start.
  static bool IsOfLastLife(ShardEpoch epoch, Term term) { return epoch.term + 1 == term.value(); }
  // [25] A shard is adopted only inside the start-up window, because outside this window workers
  // may have maps that name another owner. A shard that is still being loaded is not adopted: it
  // has taken no update that could be lost.
  static bool MayAdopt(bool window_open, bool loading) { return window_open && !loading; }
  // [25] An adopted shard lacks the closures that succeeded, are not in its ledger and are not
  // lost.
  static IntervalSet TodoAfterAdoption(const IntervalSet& /*todo*/, const IntervalSet& succeeded,
                                       const IntervalSet& done, const IntervalSet& lost) {
    return Without(succeeded, done, lost);
  }
  // [22, 25] A shard that another life stopped is not held, because its new owner may have taken
  // updates.
  static bool IsVoidCopy(std::uint64_t stopped_in, Term term) {
    return stopped_in != 0 && stopped_in != term.value();
  }
  // [25] A closure that a shard refuses, and that has not ended according to the journal, is dead:
  // the journal has forgotten its cancellation or failure.
  static bool UnknownRefusedIsDead() { return true; }
  // [26] Only an attempt at a closure that has not ended is adopted.
  static bool MayAdoptAttempt(bool needed) { return needed; }
  // [26] An attempt below the current attempt is superseded.
  static bool IsSuperseded(Attempt attempt, Attempt current) { return current > attempt; }
  // [27] Returns whether a file is from the present owner. A file of a former owner is older than
  // the present owner's files.
  static bool IsOfOwner(ShardEpoch of_file, ShardEpoch of_owner) { return of_file == of_owner; }
  // [29] An evaluation waits until no shard needs a repair, so that the evaluation reads every
  // update of the closures before it.
  static bool EvaluationAwaitsRepairs() { return true; }

 private:
  // Takes `set` by value to copy it only once, because every Close message computes this
  // difference.
  static IntervalSet Without(IntervalSet set, const IntervalSet& a, const IntervalSet& b) {
    set.Subtract(a);
    set.Subtract(b);
    return set;
  }
};

}  // namespace evergrad::coordinator

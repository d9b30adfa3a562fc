// The rules by which a ClosureBook decides (LEDGER lines 19 to 27 and 29). Each is a predicate of
// its arguments alone. Pure: no state, no thread, no error. closure_book.cc is the only caller.
//
// tests/mutants compiles closure_book.cc a second time with its own rules, each of which a test can
// break. A rule that is inlined into closure_book.cc would escape those tests.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/closures/closure_book.h"

namespace evergrad::coordinator {

struct ClosureRules {
  // 19: the shard was rolled back after the attempt had taken the map V0.
  static bool RolledBackSince(MapVersion start, MapVersion v0) { return start > v0; }
  // 19: only the current attempt of a closure may end it.
  static bool IsCurrent(Attempt attempt, Attempt current) { return attempt == current; }
  // 19: a closure's metrics count with its first success, and not with repairs of it.
  static bool CountsMetrics(bool all_targets) { return all_targets; }
  // 19, 26: a map that the journal forgot may have named an owner other than the present one.
  static bool ForgottenMapIsVoid() { return true; }
  // 19, 20: a cancelled closure cannot succeed.
  static bool CancelEndsAttempt() { return true; }
  // 20: a closure that succeeded cannot be cancelled.
  static bool SuccessIsFinal() { return true; }
  // 20: the user learns of the end of a cancellation only when every owner refuses the closure.
  static bool CancelAwaitsOwners() { return true; }
  // 20b: a closure whose repair failed is lost at the shard.
  static bool FailedRepairIsLost() { return true; }

  // 21: a rolled-back shard lacks the closures that succeeded, were not in the snapshot and are not
  // lost.
  static IntervalSet TodoAfterRollback(const IntervalSet& succeeded, const IntervalSet& done,
                                       const IntervalSet& lost) {
    return Without(succeeded, done, lost);
  }
  // 21: the shard gets a new epoch, and a start above every map that named the former owner.
  static ShardOwner RolledBack(const ShardOwner& /*former*/, const std::string& server,
                               ShardEpoch epoch, MapVersion version) {
    return {server, epoch, version};
  }
  // 21: an Assign carries the refused closures.
  static bool AssignCarriesRefused() { return true; }
  // 22: the shard gets a new epoch under the same start, because no update is lost.
  static ShardOwner Moved(const ShardOwner& former, const std::string& server, ShardEpoch epoch,
                          MapVersion /*version*/) {
    return {server, epoch, former.start};
  }
  // 23: the number of open closures is limited.
  static bool MayOpenOneMore(std::uint64_t open, std::uint64_t open_max) { return open < open_max; }
  // 24: the closures that a Close may call done at a shard.
  static IntervalSet DoneAt(const IntervalSet& succeeded, const IntervalSet& todo,
                            const IntervalSet& lost) {
    return Without(succeeded, todo, lost);
  }
  // 24: after `ignored` the next Close is whole.
  static bool WholeAfterIgnored() { return true; }

  // 25: a life between the epoch's life and ours may have handed out maps that name the former
  // owner, with a V above the epoch's start.
  static bool IsOfLastLife(ShardEpoch epoch, Term term) { return epoch.term + 1 == term.value(); }
  // 25: outside the start-up window workers have maps. A shard that is still being loaded has taken
  // no update that could be lost.
  static bool MayAdopt(bool window_open, bool loading) { return window_open && !loading; }
  // 25: an adopted shard lacks the closures that succeeded, are not in its ledger and are not lost.
  static IntervalSet TodoAfterAdoption(const IntervalSet& /*todo*/, const IntervalSet& succeeded,
                                       const IntervalSet& done, const IntervalSet& lost) {
    return Without(succeeded, done, lost);
  }
  // 22, 25: a shard that another life stopped is not held, because its new owner may have taken
  // updates.
  static bool IsVoidCopy(std::uint64_t stopped_in, Term term) {
    return stopped_in != 0 && stopped_in != term.value();
  }
  // 25: a closure that a shard refuses and the journal forgot is dead.
  static bool UnknownRefusedIsDead() { return true; }
  // 26: only an attempt at a closure that has not ended is adopted.
  static bool MayAdoptAttempt(bool needed) { return needed; }
  // 26: an attempt below the current one is superseded.
  static bool IsSuperseded(Attempt attempt, Attempt current) { return current > attempt; }
  // 27: a file of a former owner is older than those of the present owner.
  static bool IsOfOwner(ShardEpoch of_file, ShardEpoch of_owner) { return of_file == of_owner; }
  // 29: an evaluation reads every update of the closures before it.
  static bool EvaluationAwaitsRepairs() { return true; }

 private:
  // Copies the set only once, because every Close message needs the difference.
  static IntervalSet Without(IntervalSet set, const IntervalSet& a, const IntervalSet& b) {
    set.Subtract(a);
    set.Subtract(b);
    return set;
  }
};

}  // namespace evergrad::coordinator

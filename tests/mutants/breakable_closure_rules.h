// The rules of coordinator/closures. The active mutant breaks one of them. If a source of that room
// also has a file in this folder, it is compiled with these rules.
#pragma once

#include "coordinator/closures/closure_rules.h"
#include "tests/mutants/mutant.h"

namespace evergrad::coordinator {

using mutants::IsActive;
using mutants::Mutant;

struct BreakableClosureRules : ClosureRules {
  static bool RolledBackSince(MapVersion start, MapVersion v0) {
    return !IsActive(Mutant::kDoneIgnoresV0) && ClosureRules::RolledBackSince(start, v0);
  }
  static bool IsCurrent(Attempt attempt, Attempt current) {
    return IsActive(Mutant::kAnyAttemptDone) || ClosureRules::IsCurrent(attempt, current);
  }
  static bool CountsMetrics(bool all_targets) {
    return IsActive(Mutant::kRepairCounts) || ClosureRules::CountsMetrics(all_targets);
  }
  static bool ForgottenMapIsVoid() {
    return !IsActive(Mutant::kUnknownVOk) && ClosureRules::ForgottenMapIsVoid();
  }
  static bool CancelEndsAttempt() {
    return !IsActive(Mutant::kDeadMaySucceed) && ClosureRules::CancelEndsAttempt();
  }
  static bool SuccessIsFinal() {
    return !IsActive(Mutant::kCancelSucceeded) && ClosureRules::SuccessIsFinal();
  }
  static bool CancelAwaitsOwners() {
    return !IsActive(Mutant::kToldAtOnce) && ClosureRules::CancelAwaitsOwners();
  }
  static bool FailedRepairIsLost() {
    return !IsActive(Mutant::kFailedRepairForgotten) && ClosureRules::FailedRepairIsLost();
  }
  static IntervalSet TodoAfterRollback(const IntervalSet& succeeded, const IntervalSet& done,
                                       const IntervalSet& lost) {
    if (IsActive(Mutant::kNoTodo)) return {};
    return ClosureRules::TodoAfterRollback(
        succeeded, done, IsActive(Mutant::kTodoIgnoresLost) ? IntervalSet() : lost);
  }
  static ShardOwner RolledBack(const ShardOwner& former, const std::string& server,
                               ShardEpoch epoch, MapVersion version) {
    const bool had_owner = former.epoch != ShardEpoch{};
    return ClosureRules::RolledBack(
        former, server, had_owner && IsActive(Mutant::kRollbackKeepsEpoch) ? former.epoch : epoch,
        had_owner && IsActive(Mutant::kRollbackKeepsStart) ? former.start : version);
  }
  static bool AssignCarriesRefused() {
    return !IsActive(Mutant::kAssignWithoutRefused) && ClosureRules::AssignCarriesRefused();
  }
  static ShardOwner Moved(const ShardOwner& former, const std::string& server, ShardEpoch epoch,
                          MapVersion version) {
    ShardOwner owner = ClosureRules::Moved(former, server, epoch, version);
    if (IsActive(Mutant::kMoveKeepsEpoch)) owner.epoch = former.epoch;
    if (IsActive(Mutant::kMoveChangesStart)) owner.start = version;
    return owner;
  }
  static bool MayOpenOneMore(std::uint64_t open, std::uint64_t open_max) {
    return IsActive(Mutant::kGrantsWithoutBound) || ClosureRules::MayOpenOneMore(open, open_max);
  }
  static IntervalSet DoneAt(const IntervalSet& succeeded, const IntervalSet& todo,
                            const IntervalSet& lost) {
    return ClosureRules::DoneAt(succeeded,
                                IsActive(Mutant::kCloseIgnoresTodo) ? IntervalSet() : todo,
                                IsActive(Mutant::kCloseHoldsLost) ? IntervalSet() : lost);
  }
  static bool WholeAfterIgnored() {
    return !IsActive(Mutant::kCloseNeverWholeAgain) && ClosureRules::WholeAfterIgnored();
  }
  static bool IsOfLastLife(ShardEpoch epoch, Term term) {
    return IsActive(Mutant::kAdoptOfAnyLife) ? epoch.term < term.value()
                                             : ClosureRules::IsOfLastLife(epoch, term);
  }
  static bool MayAdopt(bool window_open, bool loading) {
    return ClosureRules::MayAdopt(window_open || IsActive(Mutant::kAdoptOutsideWindow),
                                  loading && !IsActive(Mutant::kLoadingAdopted));
  }
  static IntervalSet TodoAfterAdoption(const IntervalSet& todo, const IntervalSet& succeeded,
                                       const IntervalSet& done, const IntervalSet& lost) {
    return IsActive(Mutant::kAdoptKeepsTodo)
               ? todo
               : ClosureRules::TodoAfterAdoption(todo, succeeded, done, lost);
  }
  static bool IsVoidCopy(std::uint64_t stopped_in, Term term) {
    return !IsActive(Mutant::kStoppedIsHeld) && ClosureRules::IsVoidCopy(stopped_in, term);
  }
  static bool UnknownRefusedIsDead() {
    return !IsActive(Mutant::kUnknownRefusedLives) && ClosureRules::UnknownRefusedIsDead();
  }
  static bool MayAdoptAttempt(bool needed) {
    return IsActive(Mutant::kAdoptUnneeded) || ClosureRules::MayAdoptAttempt(needed);
  }
  static bool IsSuperseded(Attempt attempt, Attempt current) {
    return !IsActive(Mutant::kAdoptOlder) && ClosureRules::IsSuperseded(attempt, current);
  }
  static bool IsOfOwner(ShardEpoch of_file, ShardEpoch of_owner) {
    return IsActive(Mutant::kTakesLateFile) || ClosureRules::IsOfOwner(of_file, of_owner);
  }
  static bool EvaluationAwaitsRepairs() {
    return !IsActive(Mutant::kEvalBeforeTodoEmpty) && ClosureRules::EvaluationAwaitsRepairs();
  }
};

}  // namespace evergrad::coordinator

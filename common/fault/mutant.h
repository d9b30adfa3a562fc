// The rules of LEDGER.md, each of which can be left out on purpose: the simulation must catch every
// omission. A daemon runs with kNone unless a test arms a failpoint: `ledger.off` (kLedgerOff) or
// `pull.ignore_start` (kUnchangedByVlsn) at a server, `coordinator.ignore_v0` (kDoneIgnoresV0).
#pragma once

namespace evergrad::fault {

enum class Mutant {
  kNone,
  kLedgerOff,          // bit set is not looked at: every push is applied (line 10)
  kWatermarkOnly,      // a high-water mark instead of a bitmap (line 7)
  kNoTodo,             // rollback leaves todo[p] empty (line 21)
  kDoneIgnoresV0,      // Done does not compare start(p) with V0 (line 19)
  kV0AtEnd,            // the worker reports the map of its last push as V0 (line 14)
  kCloseIgnoresTodo,   // Close carries succeeded, not succeeded - todo[p] (line 24)
  kDoneBeforeSettled,  // the worker reports Done with up to two pushes unsettled (line 16)
  kNoEpochCheck,       // the shard does not compare epochs (line 8)
  kRegisterOneWay,     // a shard mapped to a server but not held by it is left alone (line 25)
  kNoAttemptFence,     // a lower attempt is let in (line 10); caught by I9 only
  kSkipApplies,        // a SKIP goes through the optimizer, as a gradient of zeros (line 13)
  kSkipLeavesNoBit,    // a SKIP does not set its bit (line 13)
  kSealAdmits,         // a sealed shard takes pushes (line 20a)
  kSealEntersRefused,  // a sealed shard remembers what it refused (line 20a)
  kSnapshotLosesOpen,  // a snapshot has the values without the bits of open closures (lines 6, 27)
  kUnknownVOk,  // a Done, or an attempt, under a map that the journal forgot is taken (lines 19,
                // 26)
  kTermIgnoresTasks,  // a new life looks at its journal only, not at what tasks report (line 18)
  kNoBeginAnew,       // a task that has seen a later life is registered all the same (line 18)
  kLostJobDropped,    // shards of a job that the journal has lost are dropped as those of an ended
                      // one (line 18a)
  kRemovedIsLost,     // a job that the journal was told to remove counts as lost (line 18a)
  kEvalBeforeTodoEmpty,   // an evaluation begins while shards are under repair (line 29)
  kEvalSurvivesRollback,  // an evaluation goes on although a shard was rolled back meanwhile (line
                          // 29)
  // At a shard.
  kRefusedAdmits,          // a push of a refused closure is let in (line 9)
  kDuplicateLowersNoBar,   // a DUPLICATE does not raise open[c].attempt (line 10)
  kRefusedPushLeavesBit,   // a push that fails its checks has set its bit (line 11)
  kVlsnStays,              // a gradient moves lsn only (line 6)
  kUnchangedByVlsn,        // a cached pull compares vlsn only, not (start, vlsn) (line 13)
  kCloseLeavesLsn,         // a Close that changed something is no event (line 6)
  kCloseOfAnyTime,         // a Close is taken whatever its epoch and V (line 24)
  kOpenNotFreed,           // open[c] stays when c has ended (line 30)
  kPrune,                  // done forgets what every later closure has left behind (line 30)
  kDoneMergesHoles,        // done keeps one interval, the holes filled (lines 30, 31)
  kLedgerNotInSnapshot,    // a cut has the values without their ledger (line 27)
  kCutInTwoTurns,          // the ledger is cut in one turn, the values in a later one (line 27)
  kReportedBeforeDurable,  // a file is reported before it is durable (line 27)
  kSourceGoesOn,           // the source of a move goes on serving (line 22)
  kUnprovedAdmits,         // a push whose proof does not fit is let in (line 35)
  kUnprovedRaisesBar,  // the proof is looked at after the ledger, so a DUPLICATE without one raises
                       // open[c].attempt (line 35)
  // At whoever makes and checks proofs.
  kProofOfAnyClosure,  // the proof does not cover the closure (line 34)
  kProofOfAnyAttempt,  // the proof does not cover the attempt (line 34)
  kProofOfAnyWorker,   // the proof does not cover the worker's name (line 34)
  // At a worker.
  kStaleSettles,  // STALE counts as settled (line 15)
  kDoneNotKept,   // a Done is sent once and forgotten (line 16)
  kKeepsUnnamed,  // an attempt that Registered does not name is kept (line 26)
  // At the coordinator.
  kKeyOfEachLife,    // each life of the coordinator draws a key of its own (line 36)
  kEndsUncompared,   // a job ends without a look at the number of updates (line 38)
  kTermNotSynced,    // the first message leaves before the term is durable (line 18)
  kAckBeforeCommit,  // messages leave before the commits that they follow from are durable (line
                     // 19)
  kAnyAttemptDone,   // a Done of another attempt than the current one is taken (line 19)
  kRepairCounts,     // a repair's Done counts its metrics (line 19)
  kDeadMaySucceed,   // a cancelled closure keeps its attempt, whose Done is taken (lines 19, 20)
  kCancelSucceeded,  // a closure in succeeded can be cancelled (line 20)
  kToldAtOnce,       // the user is told before the owners have answered (line 20)
  kSilentOwnerKept,  // a silent owner stays mapped at the end (line 20a)
  kFailedRepairForgotten,  // a failed repair leaves todo and does not enter lost (line 20b)
  kRollbackKeepsEpoch,     // a rollback gives no new epoch (line 21)
  kRollbackKeepsStart,     // a rollback does not raise start(p) (line 21)
  kTodoIgnoresLost,        // todo after a rollback holds lost[p] (line 21)
  kAssignWithoutRefused,   // Assign carries no refused (line 21)
  kMoveKeepsEpoch,         // a move gives no new epoch (line 22)
  kMoveChangesStart,       // a move raises start(p) (line 22)
  kGrantsWithoutBound,     // open_max is not looked at (line 23)
  kCloseHoldsLost,         // Close's done holds lost[p] (line 24)
  kCloseNeverWholeAgain,   // after `ignored` the next Close is a difference (line 24)
  kAdoptOutsideWindow,     // an epoch above the journal's is adopted at any time (line 25)
  kAdoptOfAnyLife,  // an epoch of any earlier life is adopted, not of the last one alone (line 25)
  kAdoptKeepsTodo,  // an adopted shard's todo is not computed anew (line 25)
  kUnknownRefusedLives,  // what a shard refuses and the journal forgot does not become dead (line
                         // 25)
  kNoDrop,               // a shard that is held and not mapped is left alone (line 25)
  kLoadingAdopted,       // a shard that is still being loaded is adopted (line 25)
  kStoppedIsHeld,   // a shard that a former life stopped to move it counts as held (lines 22, 25)
  kAdoptUnneeded,   // an attempt of a closure that has ended is adopted (line 26)
  kAdoptOlder,      // an attempt is adopted although a higher one is current (line 26)
  kAdoptsUnproved,  // an attempt is adopted although its proof does not fit (lines 26, 35)
  kResumeKeepsAttempts,  // the attempts of open closures come along into the new job (line 28)
  kResumeForgetsOpen,    // open closures do not come along (line 28)
  kTakesLateFile,        // a file of an epoch that is not the shard's any more is entered (line 27)
  kDeletesNamed,         // a file goes although a kept manifest names it (line 30)
  kDeletesBeforeDurable,  // a file goes before the journal has forgotten it for good (line 30)
  kHalfAdmitted,  // of a push that one table refuses, what the tables before it were prepared for
                  // is applied (line 11)
  kRowsAfterCut,  // what a slot's rows were at the moment of a cut is not kept: they are taken as
                  // they are when their slice is (line 27)
};

}  // namespace evergrad::fault

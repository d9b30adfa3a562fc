// The rules of LEDGER.md, each of which can be left out on purpose: the simulation must catch every one.
// A daemon runs with kNone, but for `--failpoints ledger.off` (tests only), which is kLedgerOff.
#pragma once

namespace evergrad::fault {

enum class Mutant {
  kNone,
  kLedgerOff,             // bit set is not looked at: every push is applied (line 10)
  kWatermarkOnly,         // a high-water mark instead of a bitmap (line 7)
  kNoTodo,                // rollback leaves todo[p] empty (line 21)
  kDoneIgnoresV0,         // Done does not compare start(p) with V0 (line 19)
  kV0AtEnd,               // the worker reports the map of its last push as V0 (line 14)
  kCloseIgnoresTodo,      // Close carries succeeded, not succeeded - todo[p] (line 24)
  kDoneBeforeSettled,     // the worker reports Done with up to two pushes unsettled (line 16)
  kNoEpochCheck,          // the shard does not compare epochs (line 8)
  kRegisterOneWay,        // a shard mapped to a server but not held by it is left alone (line 25)
  kNoAttemptFence,        // a lower attempt is let in (line 10); caught by I9 only
  kSkipApplies,           // a SKIP goes through the optimizer, as a gradient of zeros (line 13)
  kSkipLeavesNoBit,       // a SKIP does not set its bit (line 13)
  kSealAdmits,            // a sealed shard takes pushes (line 20a)
  kSealEntersRefused,     // a sealed shard remembers what it refused (line 20a)
  kSnapshotLosesOpen,     // a snapshot has the values without the bits of open closures (lines 6, 27)
  kUnknownVOk,            // a Done, or an attempt, under a map that the journal forgot is taken (lines 19, 26)
  kTermIgnoresTasks,      // a new life looks at its journal only, not at what tasks report (line 18)
  kNoBeginAnew,           // a task that has seen a later life is registered all the same (line 18)
  kEvalBeforeTodoEmpty,   // an evaluation begins while shards are under repair (line 29)
  kEvalSurvivesRollback,  // an evaluation goes on although a shard was rolled back meanwhile (line 29)
};

}  // namespace evergrad::fault

// The closures of a functions job, with the effects of grants, ends, failures, cancellations and
// checkpoints.
//
// The queue holds the state that the journal must have (function_queue.h). This class connects the
// queue with the ledger: a closure that fails or is cancelled is dead in the ClosureBook (LEDGER
// line 20), and the client learns of it once every owner of a shard refuses the closure. Arguments
// are kept as long as a rollback to a snapshot may need to run the closure again (LEDGER line 33).
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from the host.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/base/interval_set.h"
#include "coordinator/jobs/checkpoint_rounds.h"
#include "coordinator/jobs/epoch_account.h"
#include "coordinator/jobs/function_queue.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/task_totals.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class FunctionClosures : private JobPart {
 public:
  // The other parts of the job that this class reads and changes. They outlive it.
  struct Parts {
    EpochAccount* epochs;
    TaskTotals* totals;
    const CheckpointRounds* rounds;
    // Tells a worker that its attempt at a closure is void, and forgets the attempt.
    std::function<void(ClosureId, const ClosureBook::Current&)> revoke;
  };
  FunctionClosures(const JobPart& part, Parts parts);

  const FunctionQueue& queue() const { return queue_; }
  // Applies the note to the queue. The next Persist commits the note.
  void Note(const v1::FunctionsNote& note);

  // --- ends
  void OnSucceeded(const std::string& worker, ClosureId closure, const v1::Done& done);
  // Only the first error counts. After the first error every other closure that has not ended is
  // cancelled, and the client's next call returns the error.
  void OnFailed(ClosureId closure, v1::ErrorDetail cause);
  // Notes that updates of a succeeded closure are lost and not made again (LEDGER line 20b).
  void OnLost(ClosureId closure);
  // Cancels `closures` (LEDGER line 20), and commits the cancellation together with `note`. Returns
  // false if the store failed.
  bool Cancel(const IntervalSet& closures, v1::FunctionsNote* note);
  // LEDGER line 18: marks a range of closure numbers as dead in `begun`. A former life may have
  // given out these numbers, and a torn journal may have lost them.
  void BeginLife(Record* begun);

  // --- closing closures. A cancelled closure is closing until every owner is known to refuse it.
  // Called at each tick, and after each answer of a server to a Close.
  void CheckClosing();
  bool closing() const { return !closing_.empty(); }
  std::string ClosingText() const;  // The text for a call that waits for closing closures.

  // --- arguments and checkpoints.
  // Drops the arguments that no rollback can need any more.
  void TrimArguments();
  // Drops arguments if needed, and returns whether the queue has capacity for `argument_bytes`
  // more. If it has no capacity, asks for a checkpoint, which lets the queue drop arguments.
  bool FreeCapacity(std::uint64_t argument_bytes);
  void OnSaved(const v1::Manifest& manifest);  // Called when a checkpoint has been written.
  bool AllSaved() const;  // Returns whether the newest checkpoint holds all succeeded closures.
  void WantRound() { round_wanted_ = true; }  // Called when a client waits for AllSaved.
  bool wants_round() const { return round_wanted_ || capacity_wanted_; }
  void OnRoundTick();  // Called after each tick at which the wanted round could begin.

  // --- queries
  std::set<std::string> WantedFunctions() const;  // The functions of closures that have not ended.
  // If an open closure needs a function that no worker has, returns a text about the wait for such
  // a worker; otherwise "".
  std::string WaitingFor(const std::set<std::string>& functions_of_workers) const;

  // --- the journal
  void Fill(v1::FunctionsState* state) const { queue_.Fill(state); }
  absl::Status Read(const v1::FunctionsState& state) { return queue_.Read(state); }
  void ReadNote(const v1::FunctionsNote& note);
  void Clear() { queue_.Clear(); }  // Called when the job has ended: drops arguments and results.

 private:
  void Count(const v1::FunctionSucceeded& one);
  IntervalSet SavedClosures() const;

  const Parts parts_;
  FunctionQueue queue_;
  IntervalSet closing_;
  std::vector<IntervalSet> saved_done_;  // The done set of each shard in the newest manifest.
  bool round_wanted_ = false;            // A durable join waits.
  bool capacity_wanted_ = false;         // A schedule() waits for capacity for its arguments.
  bool arguments_given_up_said_ = false;
};

}  // namespace evergrad::coordinator

// The closures of a functions job on their way: granted, ended, failed, cancelled, saved.
//
// The queue holds what the journal must know (function_queue.h). This part joins it with the
// ledger: a closure that fails or is cancelled is dead in the book [20], and the user is told once
// every owner of a shard refuses it. Arguments are kept while a snapshot may still need the closure
// again [33].
//
// Not thread-safe: the control executor's. No clock and no I/O but through the host.
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
  // The other parts of the job that this part reads and changes. They outlive it.
  struct Parts {
    EpochAccount* epochs;
    TaskTotals* totals;
    const CheckpointRounds* rounds;
    // The worker's attempt at a closure is void: the worker is told, and the job forgets both.
    std::function<void(ClosureId, const ClosureBook::Current&)> revoke;
  };
  FunctionClosures(const JobPart& part, Parts parts);

  const FunctionQueue& queue() const { return queue_; }
  // Applies the change to the queue. The next Persist commits it.
  void Note(const v1::FunctionsNote& note);

  // --- ends
  void OnSucceeded(const std::string& worker, ClosureId closure, const v1::Done& done);
  // The first error wins: every other closure that has not ended is cancelled, and the next call of
  // the client is told.
  void OnFailed(ClosureId closure, v1::ErrorDetail cause);
  // [20b] Updates of a closure that has succeeded are lost and not made again.
  void OnLost(ClosureId closure);
  // [20] Commits `note` with the cancellation. Returns false if the store failed.
  bool Cancel(const IntervalSet& closures, v1::FunctionsNote* note);
  // LEDGER line 18: adds to `begun` the death of numbers that a torn journal may have given out.
  void BeginLife(Record* begun);

  // --- closures that are cancelled, and that some owner of a shard is not known to refuse yet
  void CheckClosing();  // An owner has answered, or a server is gone.
  bool closing() const { return !closing_.empty(); }
  std::string ClosingText() const;  // The text of a call that waits for them.

  // --- arguments and checkpoints
  // Drops the arguments that no snapshot needs any more.
  void TrimArguments();
  // Returns whether the queue has capacity for so many bytes of arguments, after it has dropped all
  // that it may. While it has none, a checkpoint is wanted.
  bool MakeRoom(std::uint64_t argument_bytes);
  void OnSaved(const v1::Manifest& manifest);  // A checkpoint is written.
  bool AllSaved() const;                       // The newest checkpoint holds all that succeeded.
  void WantRound() { round_wanted_ = true; }   // Somebody waits for AllSaved.
  bool wants_round() const { return round_wanted_ || room_wanted_; }
  void OnRoundTick();  // A wanted round had its turn.

  // --- questions
  std::set<std::string> WantedFunctions() const;  // Those of closures that have not ended.
  // Returns what the open closures wait for if no worker has their functions; else "".
  std::string WaitingFor(const std::set<std::string>& functions_of_workers) const;

  // --- the journal
  void Fill(v1::FunctionsState* state) const { queue_.Fill(state); }
  absl::Status Read(const v1::FunctionsState& state) { return queue_.Read(state); }
  void ReadNote(const v1::FunctionsNote& note);
  void Clear() { queue_.Clear(); }  // The job has ended: drops arguments and results.

 private:
  void Count(const v1::FunctionSucceeded& one);
  IntervalSet SavedClosures() const;

  const Parts parts_;
  FunctionQueue queue_;
  IntervalSet closing_;
  std::vector<IntervalSet> saved_done_;  // By shard, the done set in the newest manifest.
  bool round_wanted_ = false;            // A durable join waits.
  bool room_wanted_ = false;             // A schedule() waits for capacity for its arguments.
  bool arguments_given_up_said_ = false;
};

}  // namespace evergrad::coordinator

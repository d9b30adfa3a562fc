// The closures of one job that workers hold, and the closures that can be granted next (LEDGER
// lines 23 and 26; numbers in brackets are lines of LEDGER). A life of the coordinator learns the
// attempts from its own grants and from the workers' registrations; the journal does not record
// them. A pure state machine: no clock, no threads, no I/O. Not thread-safe.
//
// A closure has at most one current attempt. The ClosureBook applies each Record to the durable
// state and then passes the Record to OnCommit. The ClosureBook also passes the durable state to
// each function that reads it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "coordinator/closures/durable_state.h"

namespace evergrad::coordinator {

class AttemptTable {
 public:
  struct Current {
    Attempt attempt;
    TaskId worker;
    bool all_targets = true;
    std::set<ShardId> targets;
  };
  using Map = std::map<ClosureId, Current>;
  struct Granted {
    ClosureId closure;
    Attempt attempt;
    bool all_targets = true;
    std::set<ShardId> targets;
    bool repair = false;
  };
  // Returns whether a worker can run a closure. An empty function accepts every closure.
  using Filter = std::function<bool(ClosureId)>;

  AttemptTable(std::uint64_t closures, std::uint32_t open_max, const DurableState& state);
  // Forgets the attempts of the former life, but keeps new_limit_ and repairs_granted_.
  void BeginLife();
  void OnCommit(const Record& record, const DurableState& state);

  // [23] Chooses the closure to grant next. Returns nullopt if there is none. The returned grant
  // has no attempt number yet. The closure leaves the queue of its kind, so the caller must call
  // Begin next.
  std::optional<Granted> ChooseNext(const DurableState& state, bool grants_new, const Filter& may);
  void Begin(const Granted& granted, TaskId worker);
  // [26] Makes the attempt of a worker that registers current, unless a higher attempt at the
  // closure is current. Returns whether the given attempt is current now.
  bool Adopt(ClosureId closure, Current adopted);

  // Removes an attempt that has ended. The closure of the attempt is not queued to be granted
  // again.
  void Forget(Map::const_iterator it);
  // Removes an attempt that has ended, and queues its closure to be granted again unless the
  // closure has ended.
  void Release(Map::const_iterator it, const DurableState& state);
  std::vector<ClosureId> ReleaseWorker(TaskId worker, const DurableState& state);
  // Removes `closures` from the queue of closures to grant again. Current attempts at these
  // closures stay.
  void Unqueue(const IntervalSet& closures);
  // The same as Unqueue, and also ends the current attempts at `closures`.
  void Forget(const IntervalSet& closures);
  void SetNewLimit(std::uint64_t limit) { new_limit_ = limit; }

  const Map& current() const { return current_; }
  // Number of current attempts that are not repairs.
  std::uint64_t with_all_targets() const { return with_all_targets_; }
  std::uint64_t next_new() const { return next_new_; }
  bool RequeuedWait() const { return !requeued_.empty(); }
  bool RepairsPending() const { return !with_todo_.empty(); }
  std::uint64_t RepairsLeft(const DurableState& state) const;  // sum of the sizes of all todo sets
  std::uint64_t repairs_granted() const { return repairs_granted_; }

 private:
  std::optional<Granted> ChooseRepair(const DurableState& state, const Filter& may);
  std::optional<ClosureId> TakeRequeued(const Filter& may);
  std::optional<ClosureId> TakeNew(const DurableState& state, const Filter& may);

  const std::uint64_t closures_;
  const std::uint32_t open_max_;
  Map current_;
  std::uint64_t with_all_targets_ = 0;
  // Closures that have not ended and have no current attempt, although they were granted or adopted
  // in this life, or were skipped because a worker could not run them.
  std::set<std::uint64_t> requeued_;
  std::uint64_t next_new_ = 0;
  std::uint64_t new_limit_ = ~0ull;
  std::set<std::uint32_t> with_todo_;  // shards whose todo set is not empty
  // Every closure of a todo set below this number has a current attempt.
  std::uint64_t repair_hint_ = 0;
  std::uint64_t repairs_granted_ = 0;
};

}  // namespace evergrad::coordinator

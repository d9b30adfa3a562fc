// The coordinator's half of the ledger protocol for one job (LEDGER lines 18 to 28). A pure state
// machine: no clock, no threads, no I/O. Not thread-safe; the job calls it as its driver.
//
// The book has three parts: the durable state (DurableBook), the attempts (AttemptTable), and the
// ended closures that the owner of each shard knows (CloseTracker).
//
// Every durable change is a Record. The book applies the record to its DurableState and returns the
// record. The driver commits the record to the StateStore before it sends a message of the same
// call. A replay of the records gives the same state. Bracketed numbers are lines of LEDGER.md.
// Peers may send any number: a closure or shard outside the plan changes nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/closures/attempt_table.h"
#include "coordinator/closures/close_tracker.h"
#include "coordinator/closures/durable_book.h"
#include "coordinator/closures/durable_state.h"

namespace evergrad::coordinator {

class ClosureBook {
 public:
  using Granted = AttemptTable::Granted;
  using Current = AttemptTable::Current;
  using AssignOrder = DurableBook::AssignOrder;
  using MapChange = DurableBook::MapChange;
  using HeldShard = DurableBook::HeldShard;
  using ServerRegistration = DurableBook::ServerRegistration;
  using CloseOrder = CloseTracker::Order;

  struct Options {
    std::uint64_t closures = 0;  // number of closures of the plan
    std::uint32_t shards = 0;
    // Limit of closures that are granted and neither succeeded nor dead [23].
    std::uint32_t open_max = 4096;
  };
  ClosureBook(Options options, DurableState state);
  const DurableState& durable() const { return durable_.state(); }

  // Begins a life of the coordinator (line 18). `term` is the term of all jobs in this life: 1 +
  // max(the term of the store, the terms that tasks report). `term` must be above durable().term
  // (EG_CHECK). All volatile state becomes empty, and the start-up window is open until
  // CloseWindow(). A new job's book begins with the same call, directly followed by CloseWindow(),
  // because no task holds attempts or shards of the job. The map version becomes (term, 1). A
  // worker that waits for a map which the journal forgot therefore gets a newer map.
  Record BeginLife(Term term);
  bool window_open() const { return window_open_; }
  void CloseWindow() { window_open_ = false; }

  // --- line 23.
  // Returns the next grant, or nullopt if there is none for this worker now. Inside the start-up
  // window there is none. `worker` is the registration that will run the closure. Grants are not
  // journaled. `grants_new` is false while an evaluation or the end is due: only repairs and
  // requeued closures are granted then.
  //
  // `may` returns whether the worker can run a closure, because not every worker has every user
  // function. If `may` is empty, the worker can run all closures. Closures that the worker cannot
  // run wait for another worker. A new closure that waits in this way no longer counts as new, and
  // does not count for open_max.
  std::optional<Granted> NextGrant(TaskId worker, bool grants_new = true,
                                   const AttemptTable::Filter& may = {});
  // Returns a number for work that this book does not count (evaluation, describe, export). All
  // attempts share one sequence, so no attempt number is used twice.
  Attempt NextAttempt() { return durable_.NextAttempt(); }
  // Releases the attempts of a worker that has disconnected or has registered again (call
  // RegisterWorker first). Returns the closures of these attempts. These closures are granted again
  // before new closures, with higher attempts.
  std::vector<ClosureId> ReleaseWorker(TaskId worker) {
    return attempts_.ReleaseWorker(worker, durable());
  }
  // Releases an attempt that its worker has dropped. Nothing changes unless the attempt is current.
  void ReleaseAttempt(ClosureId closure, Attempt attempt);

  // --- lines 19, 20 and 20b
  struct DoneResult {
    // True while the start-up window is open. The caller then keeps the Done and calls again after
    // CloseWindow().
    bool deferred = false;
    bool acknowledged = false;  // if false (and not deferred), the answer is SUPERSEDED
    // true if this is the first success of the closure; its metrics then count
    bool counted = false;
    Record record;
  };
  // The targets of the Done are the targets of the current attempt, as granted or adopted.
  DoneResult OnDone(ClosureId closure, Attempt attempt, MapVersion v0, MapVersion v1);
  // [20] Cancels a closure and ends its attempt. The record is empty if the closure has ended.
  Record Cancel(ClosureId closure);
  // [20] Cancels the closures in one transaction. Closures that have ended or are outside the plan
  // are unchanged. Attempts at the cancelled closures stay current until the driver has told the
  // workers and releases the attempts.
  Record Cancel(const IntervalSet& closures);
  // [20] Returns whether every owner of a shard is known to refuse the closures. The user may learn
  // of the cancellation only when the result is true.
  bool RefusedEverywhere(const IntervalSet& closures) const {
    return closes_.RefusedEverywhere(closures, durable());
  }
  bool RefusedEverywhere(ClosureId closure) const {
    return RefusedEverywhere(IntervalSet{closure.value()});
  }
  // [20b] Gives up the repair of a closure at the targets of the attempt. The record is empty
  // unless this is the current attempt of a repair.
  Record FailRepair(ClosureId closure, Attempt attempt);

  // --- lines 20a, 21, 22, 27 and 28: as in DurableBook. Places a shard for the first time, or
  // rolls it back (line 21). `server` is connected and gets the Assign.
  MapChange Rollback(ShardId shard, const std::string& server) {
    return PassOn(durable_.Rollback(shard, server));
  }
  MapChange RollbackTo(ShardId shard, const std::string& server, const Snapshot* snapshot) {
    return PassOn(durable_.RollbackTo(shard, server, snapshot));
  }
  MapChange Move(ShardId shard, ShardEpoch from, const std::string& server) {
    return PassOn(durable_.Move(shard, from, server));
  }
  // Takes the shard from an owner that does not answer.
  MapChange Unmap(ShardId shard) { return PassOn(durable_.Unmap(shard)); }
  std::vector<ShardId> ShardsOf(const std::string& server) const {
    return durable_.ShardsOf(server);
  }
  Record AddSnapshot(ShardId shard, Snapshot snapshot) {
    return durable_.AddSnapshot(shard, std::move(snapshot));
  }
  // Removes snapshots whose files are damaged, or that no kept manifest names. The caller deletes a
  // file only once the record is durable.
  Record RemoveSnapshots(ShardId shard, const std::set<std::string>& uris) {
    return durable_.RemoveSnapshots(shard, uris);
  }
  const Snapshot* NewestSnapshot(ShardId shard) const { return durable_.NewestSnapshot(shard); }
  // Begins the job with the files of another job's manifest. `snapshots` has one snapshot for each
  // shard, in the order of the shards.
  Record ResumeFrom(std::vector<Snapshot> snapshots) {
    return durable_.ResumeFrom(std::move(snapshots));
  }

  // --- line 25: as in DurableBook, with the present state of the start-up window
  ServerRegistration RegisterServer(const std::string& server, const std::vector<HeldShard>& held,
                                    bool restore = true);

  // --- line 26. If the store can lose its newest records (a torn tail), register and answer
  // workers only after CloseWindow(). While a shard that the journal forgot may still be adopted,
  // no worker may get a map. Such a map would name another owner of the shard. The version of the
  // map, which is V0 of the attempts that begin with it, would be above the shard's start, so line
  // 19 would not detect that these attempts missed the shard.
  struct HeldAttempt {
    ClosureId closure;
    Attempt attempt;
    bool all_targets = true;
    std::set<ShardId> targets;
    MapVersion v1;
    // [35] true if the driver has verified that this worker was granted the attempt.
    bool proved = true;
  };
  // Returns those of the held attempts that were adopted.
  std::vector<HeldAttempt> RegisterWorker(TaskId worker, const std::vector<HeldAttempt>& held);

  // --- line 24: as in CloseTracker
  std::vector<CloseOrder> MakeCloses(TaskId server_session, const std::string& server) {
    return closes_.Make(server_session, server, durable_);
  }
  void OnClosed(TaskId server_session, ShardId shard, ShardEpoch epoch, bool taken) {
    closes_.OnClosed(server_session, shard, epoch, taken, durable());
  }
  void EndServerSession(TaskId server_session) { closes_.EndSession(server_session); }
  bool ClosesSettled() const { return closes_.Settled(durable_); }

  // --- queries.
  // Returns whether every closure of the plan has ended, todo is empty, every shard has an owner,
  // no attempt is current and the window is closed.
  bool Quiet() const;
  bool RepairsPending() const { return attempts_.RepairsPending(); }  // some todo set is not empty
  // The sum of all todo sets: a closure counts once for each shard that lacks it.
  std::uint64_t RepairsLeft() const { return attempts_.RepairsLeft(durable()); }
  // [29] Returns whether an evaluation of the state after the closures below `limit` may begin:
  // each of these closures has ended, no attempt is current, and no shard needs a repair. After a
  // rollback the evaluation begins again.
  bool BarrierReached(std::uint64_t limit) const;
  // Number of closures with a current attempt.
  std::uint64_t InFlight() const { return current().size(); }
  std::uint64_t repairs_granted() const { return attempts_.repairs_granted(); }
  // Returns the number from which the next new closure is searched. All lower closures have ended,
  // were granted or adopted in this term, or wait for a worker that can run them.
  std::uint64_t next_new() const { return attempts_.next_new(); }
  // Returns whether NextGrant may return a grant that is not a new closure.
  bool regrants_wait() const { return attempts_.RequeuedWait() || RepairsPending(); }
  // Grants no new closure >= limit, for the barrier of an evaluation at an epoch's end.
  void SetNewLimit(std::uint64_t limit) { attempts_.SetNewLimit(limit); }
  const std::map<ClosureId, Current>& current() const { return attempts_.current(); }

 private:
  // Applies the record to the durable state and to the attempts.
  void Commit(const Record& record);
  // Passes a change of the durable state on to the attempts and the Closes, and returns the change.
  MapChange PassOn(MapChange change);
  // [19], [26] Returns whether V1 is the version of a map that an older life made and the journal
  // forgot.
  bool IsForgotten(MapVersion v1) const;

  const Options options_;
  DurableBook durable_;
  AttemptTable attempts_;
  CloseTracker closes_;
  bool window_open_ = true;
};

}  // namespace evergrad::coordinator

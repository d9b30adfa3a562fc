// The coordinator's half of the ledger protocol for one job (LEDGER lines 18 to 26): closures,
// attempts, shard map, repair lists. The class is a pure state machine: no clock, no threads, no
// I/O. Not thread-safe; the job's driver calls it.
//
// Every durable change is a Record. The book applies the record to its DurableState and returns it.
// The driver commits it to the StateStore before it sends a message of the same call. A replay of
// the records gives the same state. Bracketed numbers are lines of LEDGER.md. Peers may send any
// number: a closure or shard outside the plan changes nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/closures/durable_state.h"

namespace evergrad::coordinator {

class ClosureBook {
 public:
  struct Options {
    std::uint64_t closures = 0;  // number of closures of the plan
    std::uint32_t shards = 0;
    // Limit of closures that are granted and neither succeeded nor dead [23].
    std::uint32_t open_max = 4096;
  };
  ClosureBook(Options options, DurableState state);
  const DurableState& durable() const { return state_; }

  // Begins a life of the coordinator (line 18). `term` is the term of all its jobs: 1 + max(the
  // term of the store, the terms that tasks report). It must be above durable().term (EG_CHECK).
  // All volatile state becomes empty, and the start-up window is open until CloseWindow(). A new
  // job's book begins with the same call, directly followed by CloseWindow(), since nobody holds
  // anything of it. V becomes (term, 1), so that a worker that waits for a map which the journal
  // forgot gets one.
  Record BeginLife(Term term);
  bool window_open() const { return window_open_; }
  void CloseWindow() { window_open_ = false; }

  // --- line 23
  struct Granted {
    ClosureId closure;
    Attempt attempt;
    bool all_targets = true;
    std::set<ShardId> targets;
    bool repair = false;
  };
  // Returns the next grant, or nullopt if there is none for this worker now, as always inside the
  // start-up window. `worker` is the registration that will run the closure. Grants are not
  // journaled. `grants_new` is false while an evaluation or the end is due: only repairs and
  // requeued closures are granted then.
  //
  // `may` says whether the worker can run a closure, because not every worker has every user
  // function. Without `may`, it can run all. Closures that it cannot run wait for another worker; a
  // new one that waits counts as granted for the limit of new closures, but not for open_max.
  std::optional<Granted> NextGrant(TaskId worker, bool grants_new = true,
                                   const std::function<bool(ClosureId)>& may = {});
  // Returns a number for work that this book does not count (evaluation, describe, export). All
  // attempts share one sequence, and no number is used twice.
  Attempt NextAttempt() { return {state_.term.value(), ++n_}; }
  // The worker has disconnected or has registered anew (call RegisterWorker first). Its closures
  // that nobody adopted are granted again before new ones, with higher attempts. Returns them.
  std::vector<ClosureId> ReleaseWorker(TaskId worker);
  // The worker has dropped this attempt. Nothing changes unless the attempt is current.
  void ReleaseAttempt(ClosureId closure, Attempt attempt);

  // --- line 19, 20, 20b
  struct DoneResult {
    // The start-up window is open: keep the Done, and call again after CloseWindow().
    bool deferred = false;
    bool acknowledged = false;  // if false (and not deferred), the answer is SUPERSEDED
    bool counted = false;       // the first success of the closure, so its metrics count
    Record record;
  };
  // The targets of the Done are those of the current attempt, as granted or adopted.
  DoneResult OnDone(ClosureId closure, Attempt attempt, MapVersion v0, MapVersion v1);
  Record Cancel(ClosureId closure);  // [20] empty if the closure is in succeeded or dead
  // [20] Cancels the closures in one transaction. Closures in succeeded, in dead or outside the
  // plan are unchanged. The attempts at the others stay current until the driver has told the
  // workers and releases them.
  Record Cancel(const IntervalSet& closures);
  // [20] Returns whether each owner has answered a Close with them, or got them in its Assign. Then
  // the user may be told.
  bool RefusedEverywhere(ClosureId closure) const;
  bool RefusedEverywhere(const IntervalSet& closures) const;
  // [20b] The record is empty unless this is the current attempt of a repair.
  Record FailRepair(ClosureId closure, Attempt attempt);

  // --- shards
  struct AssignOrder {
    ShardId shard;
    std::string server;
    ShardEpoch epoch;
    MapVersion start, version;
    IntervalSet refused;  // dead + lost[p]; the loader adds the refused set of the snapshot
    std::optional<Snapshot> snapshot;  // nullopt to begin from the seed
  };
  struct MapChange {
    Record record;
    std::vector<AssignOrder> assigns;
    std::vector<std::pair<ShardId, ShardEpoch>> drops;  // for the server that registers
    // Shards that were adopted from another server, by their owner in the journal. This owner may
    // have registered in the same window and still hold the shard: send a Drop to its session.
    std::vector<std::pair<std::string, std::pair<ShardId, ShardEpoch>>> former;
    bool map_changed = false;  // send the map to every worker
  };
  // Makes the first placement of a shard, or applies line 21: the shard begins from its newest
  // snapshot, or from the seed if it has none. `server` is connected and gets the Assign.
  MapChange Rollback(ShardId shard, const std::string& server);
  // Applies line 21 with a known state, whose ledger has these sets ({} for the seed). For models.
  MapChange RollbackTo(ShardId shard, const std::string& server, const IntervalSet& snapshot_done,
                       const IntervalSet& snapshot_refused);
  // Line 27. A file of another epoch than the shard's present one changes nothing: it would become
  // the newest although the present owner's files are newer, and a sweep may have deleted it. A
  // known file (by its URI) changes nothing, either; with another hash it replaces the known one.
  Record AddSnapshot(ShardId shard, Snapshot snapshot);
  // Forgets files that are damaged, or that no kept manifest names. Delete a file only once the
  // record is durable.
  Record RemoveSnapshots(ShardId shard, const std::set<std::string>& uris);
  const Snapshot* NewestSnapshot(ShardId shard) const;  // nullptr if there is only the seed
  // Begins from a manifest of another job, with one snapshot for each shard, in order (line 28). No
  // shard may have been placed before (EG_CHECK). `succeeded` becomes the intersection of all done
  // sets, and `dead` the union of all refused sets.
  Record ResumeFrom(std::vector<Snapshot> snapshots);
  std::vector<ShardId> ShardsOf(const std::string& server) const;
  // The state that left its owner at epoch `from` has arrived at `server` (line 22, second half).
  // If the shard now has another epoch, the change is empty and the state is void.
  MapChange Move(ShardId shard, ShardEpoch from, const std::string& server);
  // The owner does not answer (line 20a). Nobody owns the shard until the next Rollback.
  MapChange Unmap(ShardId shard);

  // --- line 25
  struct HeldShard {
    ShardId shard;
    ShardEpoch epoch;
    MapVersion start;
    IntervalSet done, refused;
    // The server is still loading the Assign. `refused` is the set in the Assign, because the
    // server does not know yet which closures the file refuses. Such a shard counts as held if it
    // is held as mapped. It is never adopted, because the journal may have lost, with the Assign,
    // the reason for which the file refuses a closure; this closure would then be granted and
    // refused forever. Nothing was applied to the shard yet, so nothing is lost.
    bool loading = false;
    // [22] If not 0, the life that stopped the shard for a move. The owner serves nobody and keeps
    // the shard until a Drop. If another life stopped it, the shard is neither held nor adopted:
    // the journal may have forgotten the move, and the new owner may have continued under the same
    // start, so that vlsn would fall within one start.
    std::uint64_t stopped_in = 0;
  };
  // Line 25. A shard that the server holds as mapped is kept. A shard that is mapped to the server
  // and not held, or not at that epoch, is rolled back on this server; if `restore` is false, it is
  // only listed in `unheld`. A shard that is held and not mapped is dropped, unless it is adopted.
  // `held` names shards of this job only; a shard that is being loaded counts as held.
  struct ServerRegistration {
    MapChange change;
    std::vector<ShardId> unheld;
  };
  ServerRegistration RegisterServer(const std::string& server, const std::vector<HeldShard>& held,
                                    bool restore = true);

  // --- line 26. If the store can forget (a torn tail), register and answer workers only after
  // CloseWindow(). As long as a forgotten shard may be adopted, no worker may get a map: the V0 of
  // that map would be above the shard's start although the map names another owner.
  struct HeldAttempt {
    ClosureId closure;
    Attempt attempt;
    bool all_targets = true;
    std::set<ShardId> targets;
    MapVersion v1;
    bool proved = true;  // [35] the driver has checked that this worker was granted the attempt
  };
  // Returns the adopted attempts.
  std::vector<HeldAttempt> RegisterWorker(TaskId worker, const std::vector<HeldAttempt>& held);

  // --- line 24. For each (session, shard, epoch) the first Close is whole, and each later one
  // holds the closures added since. After `ignored` the next one is whole again. One Close is in
  // flight for each; the next one follows OnClosed. EndServerSession forgets the session.
  struct CloseOrder {
    ShardId shard;
    ShardEpoch epoch;
    MapVersion version;
    IntervalSet done, refused;
    bool whole = false;
  };
  // Returns orders only for shards with changes.
  std::vector<CloseOrder> MakeCloses(TaskId server_session, const std::string& server);
  void OnClosed(TaskId server_session, ShardId shard, ShardEpoch epoch, bool taken);
  void EndServerSession(TaskId server_session);
  // Returns whether every owner has taken all closures that a Close could name now.
  bool ClosesSettled() const;

  // --- questions
  bool AllEnded() const;  // every closure of the plan is in succeeded or dead
  bool Quiet() const;     // AllEnded, todo empty, every shard owned, nothing current, window closed
  bool RepairsPending() const { return !with_todo_.empty(); }  // some todo set is not empty
  // The sum of all todo sets: a closure counts once for each shard that lacks it.
  std::uint64_t RepairsLeft() const;
  // [29] Returns whether an evaluation after the closures below `limit` may begin: each has ended,
  // none has a current attempt, no shard needs repair. After a rollback the evaluation begins anew.
  bool BarrierReached(std::uint64_t limit) const;
  // Number of closures with a current attempt.
  std::uint64_t InFlight() const { return current_.size(); }
  std::uint64_t granted_attempts() const { return granted_attempts_; }
  std::uint64_t repairs_granted() const { return repairs_granted_; }
  // Returns the lowest closure number that was not granted yet. All closures below it have ended,
  // or were granted in this term.
  std::uint64_t next_new() const { return next_new_; }
  // Returns whether NextGrant may return a grant that is not a new closure.
  bool regrants_wait() const { return !requeued_.empty() || !with_todo_.empty(); }
  // Holds back closures >= limit, for the barrier of an evaluation at an epoch's end.
  void SetNewLimit(std::uint64_t limit) { new_limit_ = limit; }
  struct Current {
    Attempt attempt;
    TaskId worker;
    bool all_targets = true;
    std::set<ShardId> targets;
  };
  const std::map<ClosureId, Current>& current() const { return current_; }

 private:
  using CurrentIterator = std::map<ClosureId, Current>::iterator;
  // Applies `record` to state_, updates the derived members, and appends it to `all`.
  void Commit(const Record& record, Record* all);
  MapVersion NextVersion() { return {state_.term.value(), ++n_}; }
  IntervalSet DoneFor(std::uint32_t shard) const;  // the done set of line 24
  Record TodoBecomes(std::uint32_t shard, IntervalSet wanted, const IntervalSet& refused) const;
  MapChange RollBack(ShardId shard, const std::string& server, const IntervalSet& snapshot_done,
                     const IntervalSet& snapshot_refused, const Snapshot* snapshot);
  // [25] Closures of `refused` that neither succeeded nor are dead in this book become dead.
  void MarkUnknownDead(const IntervalSet& refused, Record* all);
  void Release(CurrentIterator it);  // removes it from current_; it is granted again
  void Forget(CurrentIterator it);   // removes it from current_
  // [19], [26] Returns whether V1 is a map of an older life that the journal forgot.
  bool Unknown(MapVersion v1) const;

  const Options options_;
  DurableState state_;
  std::uint64_t n_ = 0;  // last number of a V, an epoch or an attempt of this life
  bool window_open_ = true;
  std::map<ClosureId, Current> current_;
  std::uint64_t current_all_ = 0;  // number of members of current_ that have all targets
  // Closures granted or adopted in this life that are neither current nor ended.
  std::set<std::uint64_t> requeued_;
  std::uint64_t next_new_ = 0;
  std::uint64_t new_limit_ = ~0ull;
  std::uint64_t granted_attempts_ = 0, repairs_granted_ = 0;
  std::set<std::uint32_t> with_todo_;  // shards whose todo set is not empty
  std::uint64_t repair_hint_ = 0;      // every closure below it that is in a todo set is current
  MapVersion newest_start_;            // newest start of all shards
  std::uint64_t revision_ = 1;         // rises whenever the sets of Closes may have changed
  struct SentClose {
    ShardEpoch epoch;
    std::uint64_t revision = 0;
    bool pending = false, whole_next = true;
    IntervalSet done, refused;  // everything that was sent under this epoch
  };
  std::map<std::pair<TaskId, std::uint32_t>, SentClose> sent_closes_;
  struct Refusing {
    ShardEpoch epoch;
    IntervalSet refused;
  };
  std::vector<Refusing> refusing_;  // by shard: closures that its owner is known to refuse
};

}  // namespace evergrad::coordinator

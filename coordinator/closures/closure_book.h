// The coordinator's half of the ledger protocol for one job (LEDGER lines 18 to 26): closures,
// attempts, shard map, repair lists. A pure state machine: no clock, no threads, no I/O. Not
// thread-safe; the job's driver calls it.
//
// Every durable change is a Record: the book applies it to its DurableState and returns it; the
// driver commits it to the StateStore before it sends any message of the same call. Replaying the
// records gives the state back. Bracketed numbers are lines of LEDGER.md. Numbers in messages may
// be anything: a closure or shard outside the plan changes nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/interval_set.h"

namespace evergrad::coordinator {

struct ShardOwner {
  std::string server;  // identity; "" when nobody holds it
  ShardEpoch epoch;
  MapVersion start;
  friend bool operator==(const ShardOwner&, const ShardOwner&) = default;
};

// [27] A durable cut of one shard: what a rollback may begin from.
struct Snapshot {
  std::string folder, file;  // URI, name in it
  std::uint64_t bytes = 0;
  std::string sha256;            // of the whole file
  JobUid job;                    // that wrote it
  std::string plan_fingerprint;  // of that job's plan
  ShardEpoch epoch;              // as in the file, like the next four
  MapVersion start;
  std::uint64_t lsn = 0, vlsn = 0;
  IntervalSet done, refused;    // of its ledger; under replace_ledger: what its ledger becomes
  bool resumed = false;         // [28] another job's: attempts of open closures are forgotten
  bool replace_ledger = false;  // [28] of another plan
  std::string host;             // of the server that wrote it; for messages
  std::string Uri() const { return folder + "/" + file; }
  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

// Line "Coordinator, durable". The n of the pairs is not in it: a life numbers nothing before its
// term is durable, so each life counts from 1 again.
struct DurableState {
  Term term;
  MapVersion version;
  // [18] by term, the highest n of a V that the journal holds, of the last kKnownTermsMax lives:
  // what of an older life is not in it was forgotten. One `known` would not do: a later life counts
  // past what an earlier tear took.
  std::map<std::uint64_t, std::uint64_t> known;
  std::vector<ShardOwner> map;
  IntervalSet succeeded, dead;
  std::vector<IntervalSet> todo, lost;  // by shard
  std::vector<std::vector<Snapshot>>
      snapshots;  // by shard, in the order in which they became durable
  friend bool operator==(const DurableState&, const DurableState&) = default;
};

inline constexpr std::size_t kKnownTermsMax = 64;

// One transaction: absent fields are unchanged. Sets are differences, so a record's size is that of
// the change.
struct Record {
  std::optional<Term> term;
  std::optional<MapVersion> version;
  std::map<std::uint32_t, ShardOwner> map;
  IntervalSet succeeded_add, dead_add;
  std::map<std::uint32_t, IntervalSet> todo_add, todo_remove, lost_add;
  std::map<std::uint32_t, std::vector<Snapshot>> snapshot_add;
  std::map<std::uint32_t, std::set<std::string>> snapshot_remove;  // by URI
  bool empty() const;
  friend bool operator==(const Record&, const Record&) = default;
};
// Removals come before additions.
void ApplyRecord(const Record& record, DurableState* state);
// `into` becomes the one record that does what `into` and then `later` do.
void AppendRecord(const Record& later, Record* into);

class ClosureBook {
 public:
  struct Options {
    std::uint64_t closures = 0;  // of the plan
    std::uint32_t shards = 0;
    std::uint32_t open_max = 4096;  // granted and neither succeeded nor dead [23]
  };
  ClosureBook(Options options, DurableState state);
  const DurableState& durable() const { return state_; }

  // Line 18. `term` = 1 + max(the store's, any that a task reports), of the coordinator and the
  // same for all jobs of this life: EG_CHECK unless above durable().term. Everything volatile is
  // empty; the start-up window is open until CloseWindow(). Also the first call on a new job's book
  // (with CloseWindow() at once: nobody holds anything of it). V becomes (term, 1), so that who
  // waits for a map that the journal forgot gets one.
  Record BeginLife(Term term);
  bool window_open() const { return window_open_; }
  void CloseWindow() { window_open_ = false; }

  // --- line 23. nullopt: nothing to grant to anybody now (always inside the start-up window).
  struct Granted {
    ClosureId closure;
    Attempt attempt;
    bool all_targets = true;
    std::set<ShardId> targets;
    bool repair = false;
  };
  // `grants_new`: false while an evaluation or the end is due: then only repairs and requeued
  // closures are granted. `worker` is the registration that will run it. Grants are not journaled.
  // `may`: closures that it says no to are passed over, and granted to who may run them (user
  // functions: not every worker has every one); none: all may. A new one that is passed over counts
  // as granted for the limit of new ones, not for open_max.
  std::optional<Granted> NextGrant(TaskId worker, bool grants_new = true,
                                   const std::function<bool(ClosureId)>& may = {});
  // A number for work that this book does not count (evaluation, describe, export): one sequence,
  // never reused.
  Attempt NextAttempt() { return {state_.term.value(), ++n_}; }
  // The worker is gone, or registered anew (after RegisterWorker of the new registration): what it
  // had and nobody adopted is granted again first, with a higher attempt.
  std::vector<ClosureId> ReleaseWorker(TaskId worker);
  // The worker dropped this attempt. Nothing happens unless it is current.
  void ReleaseAttempt(ClosureId closure, Attempt attempt);

  // --- line 19, 20, 20b
  struct DoneResult {
    bool deferred =
        false;  // the start-up window is open: keep the Done and ask again after CloseWindow()
    bool acknowledged = false;  // else SUPERSEDED
    bool counted = false;       // first success of c: metrics count
    Record record;
  };
  // Targets are those of the current attempt, as granted or adopted.
  DoneResult OnDone(ClosureId closure, Attempt attempt, MapVersion v0, MapVersion v1);
  Record Cancel(ClosureId closure);  // 20; empty if it is in succeeded or dead
  // 20, in one transaction; those in succeeded, dead or outside the plan stay as they are. The
  // attempts at them are still current: the driver tells the workers and releases them.
  Record Cancel(const IntervalSet& closures);
  // 20: each owner has answered Closed with it or got it in its Assign: the user may be told.
  bool RefusedEverywhere(ClosureId closure) const;
  bool RefusedEverywhere(const IntervalSet& closures) const;
  Record FailRepair(ClosureId closure,
                    Attempt attempt);  // 20b; empty unless the attempt is current and a repair

  // --- shards
  struct AssignOrder {
    ShardId shard;
    std::string server;
    ShardEpoch epoch;
    MapVersion start, version;
    IntervalSet refused;               // dead + lost[p]; the snapshot's own is added by the loader
    std::optional<Snapshot> snapshot;  // none: the seed
  };
  struct MapChange {
    Record record;
    std::vector<AssignOrder> assigns;
    std::vector<std::pair<ShardId, ShardEpoch>> drops;  // for the registering server
    // An adopted shard's owner by the journal, which may have registered in this window and holds
    // it still: Drop for its session.
    std::vector<std::pair<std::string, std::pair<ShardId, ShardEpoch>>> former;
    bool map_changed = false;  // send the map to every worker
  };
  // First placement of a shard, and line 21 with the newest of its snapshots; without any: the
  // seed. `server` is there and gets the Assign.
  MapChange Rollback(ShardId shard, const std::string& server);
  // Line 21 with a state that the caller knows, of which s.done and s.refused are these ({} for the
  // seed). For models of the cluster.
  MapChange RollbackTo(ShardId shard, const std::string& server, const IntervalSet& snapshot_done,
                       const IntervalSet& snapshot_refused);
  // Line 27. A file that is known already (by its URI), or that is not of the shard's present
  // epoch, changes nothing: after a newer owner's file this one would be the newest, and a sweep
  // may have deleted it. One of a known name and another hash takes the place of that one.
  Record AddSnapshot(ShardId shard, Snapshot snapshot);
  // These are given up: damaged, or no kept manifest names them. Delete a file only once this is
  // durable.
  Record RemoveSnapshots(ShardId shard, const std::set<std::string>& uris);
  const Snapshot* NewestSnapshot(ShardId shard) const;  // nullptr: the seed
  // Line 28: begins from a manifest of another job. Before the first Rollback: EG_CHECK.
  // `snapshots`: one for each shard, in order. `succeeded`: the intersection of all done; dead
  // becomes the union of all refused.
  Record ResumeFrom(std::vector<Snapshot> snapshots);
  std::vector<ShardId> ShardsOf(const std::string& server) const;
  // Line 22, second half: the state that left its owner at `from` has arrived at `server`. Empty,
  // and the state is void, unless `from` is still the shard's epoch.
  MapChange Move(ShardId shard, ShardEpoch from, const std::string& server);
  // Line 20a: the owner is silent; nobody holds the shard until Rollback.
  MapChange Unmap(ShardId shard);

  // --- line 25
  struct HeldShard {
    ShardId shard;
    ShardEpoch epoch;
    MapVersion start;
    IntervalSet done, refused;
    // Its Assign is not loaded yet: `refused` is that of the Assign, what its file refuses is not
    // known. Held if it is as mapped. Never adopted: a tear may have taken with the Assign why its
    // file refuses a closure, which would be granted, and refused, without end. Nothing was applied
    // to it yet, so nothing is lost with it.
    bool loading = false;
    // [22] Not 0: the life that stopped it to be moved; its owner serves nobody and keeps it until
    // a Drop. Of another life than ours it is not held, nor adopted: the journal may have forgotten
    // that it was moved, and its new owner went on under the same start, so that vlsn would fall
    // within one.
    std::uint64_t stopped_in = 0;
  };
  // What is held as mapped is kept; mapped but not held exactly: rolled back on this server, unless
  // `restore` is false (then listed in `unheld` for the caller, who knows other states and calls
  // RollbackTo). Held but not mapped: drops. `held` names only shards of this job; a shard whose
  // Assign is being loaded counts as held.
  struct ServerRegistration {
    MapChange change;
    std::vector<ShardId> unheld;
  };
  ServerRegistration RegisterServer(const std::string& server, const std::vector<HeldShard>& held,
                                    bool restore = true);

  // --- line 26. With a store that can forget (a torn tail), call it and answer workers after
  // CloseWindow(): no worker may get a map while a forgotten shard may still be adopted, for V0 of
  // that map would be above the shard's start although it names another owner.
  struct HeldAttempt {
    ClosureId closure;
    Attempt attempt;
    bool all_targets = true;
    std::set<ShardId> targets;
    MapVersion v1;
    bool proved = true;  // [35] the driver has looked: this worker was granted it
  };
  std::vector<HeldAttempt> RegisterWorker(
      TaskId worker, const std::vector<HeldAttempt>& held);  // returns the adopted

  // --- line 24. The first per (session, p, epoch) is whole, later ones hold what was added; after
  // `ignored` the next is whole. One is on its way per (session, p, epoch): the next follows
  // OnClosed. EndServerSession forgets the session.
  struct CloseOrder {
    ShardId shard;
    ShardEpoch epoch;
    MapVersion version;
    IntervalSet done, refused;
    bool whole = false;
  };
  std::vector<CloseOrder> MakeCloses(TaskId server_session,
                                     const std::string& server);  // only those with news
  void OnClosed(TaskId server_session, ShardId shard, ShardEpoch epoch, bool taken);
  void EndServerSession(TaskId server_session);
  // Every owner has taken all that a Close could tell it now.
  bool ClosesSettled() const;

  // --- questions
  bool AllEnded() const;  // every closure of the plan is in succeeded or dead
  bool Quiet() const;     // AllEnded, todo empty, every shard owned, nothing current, window closed
  bool RepairsPending() const { return !with_todo_.empty(); }  // some todo not empty
  std::uint64_t RepairsLeft()
      const;  // what all todo hold together: a closure counts once for each shard that lacks it
  // [29] An evaluation after the closures below `limit` may begin: each has ended, none has a
  // current attempt, nothing is to be repaired. It begins again when a shard is rolled back.
  bool BarrierReached(std::uint64_t limit) const;
  std::uint64_t InFlight() const { return current_.size(); }  // closures with a current attempt
  std::uint64_t granted_attempts() const { return granted_attempts_; }
  std::uint64_t repairs_granted() const { return repairs_granted_; }
  // Highest closure number never granted yet: everything below has been granted at least once in
  // this term or ended.
  std::uint64_t next_new() const { return next_new_; }
  bool regrants_wait() const {
    return !requeued_.empty() || !with_todo_.empty();
  }  // NextGrant without new ones may give something
  // Holds back closures >= limit (an evaluation barrier at an epoch's end).
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
  // Applies `record` to state_, keeps what is derived from it, and appends it to `all`.
  void Commit(const Record& record, Record* all);
  MapVersion NextVersion() { return {state_.term.value(), ++n_}; }
  IntervalSet DoneFor(std::uint32_t shard) const;  // of line 24
  IntervalSet RefusedFor(std::uint32_t shard) const;
  Record TodoBecomes(std::uint32_t shard, IntervalSet wanted, const IntervalSet& refused) const;
  MapChange RollBack(ShardId shard, const std::string& server, const IntervalSet& snapshot_done,
                     const IntervalSet& snapshot_refused, const Snapshot* snapshot);
  // 25: closures of `refused` that neither succeeded nor are dead here become dead.
  void MarkUnknownDead(const IntervalSet& refused, Record* all);
  void Release(CurrentIterator it);   // from current_, to be granted again
  void Forget(CurrentIterator it);    // from current_
  bool Unknown(MapVersion v1) const;  // [19], [26]: of an older life, and the journal forgot it

  const Options options_;
  DurableState state_;
  std::uint64_t n_ = 0;  // numbers V, epochs and attempts of this life
  bool window_open_ = true;
  std::map<ClosureId, Current> current_;
  std::uint64_t current_all_ = 0;  // of current_, those with all targets
  std::set<std::uint64_t>
      requeued_;  // granted in this life, or adopted, and neither current nor ended
  std::uint64_t next_new_ = 0;
  std::uint64_t new_limit_ = ~0ull;
  std::uint64_t granted_attempts_ = 0, repairs_granted_ = 0;
  std::set<std::uint32_t> with_todo_;  // shards whose todo is not empty
  std::uint64_t repair_hint_ = 0;      // no closure below it is in a todo without being current
  MapVersion newest_start_;            // of all shards
  std::uint64_t revision_ = 1;         // +1 whenever what Closes carry may have changed
  struct SentClose {
    ShardEpoch epoch;
    std::uint64_t revision = 0;
    bool pending = false, whole_next = true;
    IntervalSet done, refused;  // sent so far under this epoch
  };
  std::map<std::pair<TaskId, std::uint32_t>, SentClose> sent_closes_;
  struct Refusing {
    ShardEpoch epoch;
    IntervalSet refused;
  };
  std::vector<Refusing> refusing_;  // by shard: what its owner is known to refuse
};

}  // namespace evergrad::coordinator

// The coordinator's half of the ledger protocol for one job (LEDGER lines 18 to 26): closures, attempts, shard map, repair
// lists. A pure state machine: no clock, no threads, no I/O. Not thread-safe; the job's driver calls it.
//
// Every durable change is a Record: the book applies it to its DurableState and returns it; the driver commits it to the
// StateStore before it sends any message of the same call. Replaying the records gives the state back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/interval_set.h"
#include "common/fault/mutant.h"

namespace evergrad::coordinator {

struct ShardOwner {
  std::string server;   // identity; "" when nobody holds it
  ShardEpoch epoch;
  MapVersion start;
  friend bool operator==(const ShardOwner&, const ShardOwner&) = default;
};

// Line "Coordinator, durable". `n` numbers V, epochs and attempts of this term.
struct DurableState {
  Term term;
  std::uint64_t n = 0;
  MapVersion version;
  std::vector<ShardOwner> map;
  IntervalSet succeeded, dead;
  std::vector<IntervalSet> todo, lost;  // by shard
  friend bool operator==(const DurableState&, const DurableState&) = default;
};

// One transaction: absent fields are unchanged. Sets are differences, so a record's size is that of the change.
struct Record {
  std::optional<Term> term;                         // resets n to 0
  std::optional<std::uint64_t> n;
  std::optional<MapVersion> version;
  std::map<std::uint32_t, ShardOwner> map;
  IntervalSet succeeded_add, dead_add;
  std::map<std::uint32_t, IntervalSet> todo_add, todo_remove, lost_add;
  bool empty() const;
};
void ApplyRecord(const Record& record, DurableState* state);

class ClosureBook {
 public:
  struct Options {
    std::uint64_t closures = 0;     // of the plan
    std::uint32_t shards = 0;
    std::uint32_t open_max = 4096;  // granted and neither succeeded nor dead [23]
    fault::Mutant mutant = fault::Mutant::kNone;
  };
  ClosureBook(Options options, DurableState state);
  const DurableState& durable() const { return state_; }

  // Line 18. `highest_reported`: any term that a task reported or the journal holds. Everything volatile is empty; known = V
  // of the journal; the start-up window is open until CloseWindow().
  Record BeginTerm(Term highest_reported);
  bool window_open() const { return window_open_; }
  void CloseWindow() { window_open_ = false; }

  // --- line 23. nullopt: nothing to grant to anybody now.
  struct Granted {
    ClosureId closure;
    Attempt attempt;
    bool all_targets = true;
    std::set<ShardId> targets;
    bool repair = false;
  };
  // `grants_new`: false while an evaluation or the end is due: then only repairs and requeued closures are granted.
  // `worker` is the registration that will run it. The record carries n only if the caller journals numbers; grants are not journaled.
  std::optional<Granted> NextGrant(TaskId worker, bool grants_new = true);
  // The worker is gone (or dropped this attempt): what it had is granted again first, with a higher attempt.
  std::vector<ClosureId> ReleaseWorker(TaskId worker);
  void ReleaseAttempt(ClosureId closure, Attempt attempt);

  // --- line 19, 20, 20b
  struct DoneResult {
    bool acknowledged = false;    // else SUPERSEDED
    bool counted = false;         // first success of c: metrics count
    Record record;
  };
  DoneResult OnDone(ClosureId closure, Attempt attempt, bool all_targets, const std::set<ShardId>& targets, MapVersion v0, MapVersion v1);
  Record Cancel(ClosureId closure);                                             // 20; empty if in succeeded
  Record FailRepair(ClosureId closure, Attempt attempt, const std::set<ShardId>& targets);  // 20b; empty if the attempt is not current

  // --- shards
  struct AssignOrder {
    ShardId shard;
    std::string server;
    ShardEpoch epoch;
    MapVersion start, version;
    IntervalSet refused;          // dead + lost[p]; the snapshot's own is added by the loader
  };
  struct MapChange {
    Record record;
    std::vector<AssignOrder> assigns;
    std::vector<std::pair<ShardId, ShardEpoch>> drops;  // for the registering server
    bool map_changed = false;     // send the map to every worker
  };
  // First placement of a shard, and line 21 with `snapshot_done` = s.done ({} for the seed).
  MapChange Rollback(ShardId shard, const std::string& server, const IntervalSet& snapshot_done = {});
  // Shards mapped to `server` become ownerless: no owner until Rollback gives one.
  std::vector<ShardId> ShardsOf(const std::string& server) const;
  // Line 22, second half: the state has arrived at `server`.
  MapChange Move(ShardId shard, const std::string& server);

  // --- line 25
  struct HeldShard {
    ShardId shard;
    ShardEpoch epoch;
    MapVersion start;
    IntervalSet done, refused;
  };
  // What is held as mapped is kept; mapped but not held exactly: rolled back to the seed on this server, unless
  // `restore` is false (then listed in `unheld` for the caller, who knows the snapshots).
  struct ServerRegistration {
    MapChange change;
    std::vector<ShardId> unheld;
  };
  ServerRegistration RegisterServer(const std::string& server, const std::vector<HeldShard>& held, bool restore = true);

  // --- line 26
  struct HeldAttempt {
    ClosureId closure;
    Attempt attempt;
    bool all_targets = true;
    std::set<ShardId> targets;
    MapVersion v1;
  };
  std::vector<HeldAttempt> RegisterWorker(TaskId worker, const std::vector<HeldAttempt>& held);  // returns the adopted

  // --- line 24. The first per (session, p, epoch) is whole, later ones hold what was added; after `ignored` the next is whole.
  struct CloseOrder {
    ShardId shard;
    ShardEpoch epoch;
    MapVersion version;
    IntervalSet done, refused;
    bool whole = false;
  };
  std::vector<CloseOrder> MakeCloses(TaskId server_session, const std::string& server);  // only those with news
  void OnClosed(TaskId server_session, ShardId shard, ShardEpoch epoch, MapVersion version, bool taken);
  void EndServerSession(TaskId server_session);

  // --- questions
  bool AllEnded() const;            // every closure of the plan is in succeeded or dead
  bool Quiet() const;               // AllEnded, todo empty, every shard owned, nothing current
  bool RepairsPending() const;      // some todo not empty
  std::uint64_t InFlight() const;   // closures with a current attempt
  std::uint64_t granted_attempts() const { return granted_attempts_; }
  std::uint64_t repairs_granted() const { return repairs_granted_; }
  // Highest closure number never granted yet: everything below has been granted at least once in this term or ended.
  std::uint64_t next_new() const { return next_new_; }
  // Holds back closures >= limit (an evaluation barrier at an epoch's end).
  void SetNewLimit(std::uint64_t limit) { new_limit_ = limit; }
  struct Current { Attempt attempt; TaskId worker; bool all_targets = true; std::set<ShardId> targets; };
  const std::map<ClosureId, Current>& current() const { return current_; }

 private:
  MapVersion BumpVersion(Record* record);
  Attempt NextAttempt();
  IntervalSet DoneFor(std::uint32_t shard) const;

  const Options options_;
  DurableState state_;
  MapVersion known_;            // V in the journal at the start of this life [18]
  bool window_open_ = true;
  std::map<ClosureId, Current> current_;
  std::set<std::uint64_t> requeued_;
  std::uint64_t next_new_ = 0;
  std::uint64_t new_limit_ = ~0ull;
  std::uint64_t granted_attempts_ = 0, repairs_granted_ = 0;
  struct SentClose { IntervalSet done, refused; ShardEpoch epoch; };
  std::map<std::pair<TaskId, std::uint32_t>, SentClose> sent_closes_;
};

}  // namespace evergrad::coordinator

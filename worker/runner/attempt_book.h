// The worker's half of the ledger protocol (LEDGER lines 14 to 17 and 26): the attempts that it
// holds, the pushes that are settled, and its reports. A pure state machine: no clock, no threads,
// no I/O. Not thread-safe; the runner's executor calls it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"

namespace evergrad::worker {

enum class WorkKind { kTrain, kEvaluate, kDescribe, kExport };

struct ShardPlace {
  ShardEpoch epoch;
  MapVersion start;
  std::string server;  // identity; "" if nobody holds the shard
  friend bool operator==(const ShardPlace&, const ShardPlace&) = default;
};
struct ShardMap {
  MapVersion version;
  std::vector<ShardPlace> shards;  // by shard number
  JobUid job{};                    // versions of two jobs cannot be compared
};

// Work of a functions job.
struct FunctionWork {
  std::string function, arguments;
};

// Work as granted. With all_targets, `targets` is empty and stands for every shard that an update
// touches.
struct Work {
  JobUid job;
  ClosureId closure;
  Attempt attempt;
  WorkKind kind = WorkKind::kTrain;
  bool all_targets = true;
  std::set<ShardId> targets;
  std::shared_ptr<const FunctionWork> function = nullptr;  // shared by the copies of this work
  bool first = false;                                      // as in its Grant
  // [34], [36] Sent with its pushes: the proof of its Grant, and the name of this worker at the
  // time of the Grant.
  std::string proof = {}, granted_to = {};
};

// The content of a Done, which is kept and sent again unchanged until it is answered [16]. The
// driver keeps the payload (metrics, describe, …) under the attempt.
struct DoneReport {
  Work work;
  MapVersion v0, v1;
};

enum class PushAnswer {
  kApplied,
  kDuplicate,
  kStale,
  kSuperseded,
  kRefused,
  kBusy,
  kOverBudget,
  kInvalid,
  kTransport
};
enum class Next {
  kSettled,     // the push needs nothing more
  kWaitForMap,  // STALE with a V above our map: send again once a map >= `wait_for` has arrived
  kBackoff,  // STALE at our map, transport error, BUSY, OVER_BUDGET under `pause`: send again after
             // a delay (10 ms to 1 s, doubling)
  kDropAttempt,  // SUPERSEDED or REFUSED: the book has dropped the attempt. Also for an answer to
                 // an attempt that does not run any more
  kFail,         // INVALID, or OVER_BUDGET under `fail`
};
struct Disposition {
  Next next = Next::kSettled;
  MapVersion wait_for;
};

class AttemptBook {
 public:
  enum class OverBudget { kFail, kPause };  // effect of OVER_BUDGET on the attempt [15]
  explicit AttemptBook(OverBudget over_budget = OverBudget::kFail) : over_budget_(over_budget) {}

  // The setting of the job whose attempts follow.
  void SetOverBudget(OverBudget over_budget) { over_budget_ = over_budget; }

  // --- session
  // Line 26, in one message: drops all attempts that `adopted` does not name, and returns them.
  // (The line says so for older terms. An attempt of this term that is not named was superseded
  // while the worker was disconnected. Grants come only inside a session, so none was added since
  // the Hello.) An attempt may have been dropped since the Hello: for each adopted attempt that the
  // book does not hold any more (Holds) the driver answers AttemptDropped, or the coordinator would
  // wait for it without end.
  std::vector<Attempt> OnRegistered(Term term, const std::set<Attempt>& adopted);
  // Ignores a map of the same job whose version is below the present one, unless `replace` is set.
  void OnMap(ShardMap map, bool replace = false);
  const ShardMap& map() const { return map_; }
  // Queues the work behind the present work. Work with `first` comes before all other, in the order
  // of closures. Returns false if the attempt is held already, or if kQueuedMax wait; in the second
  // case the driver answers AttemptDropped.
  bool OnGrant(Work work);
  std::vector<Attempt> OnRecall(Attempt attempt);  // gives the attempt back if it has not begun
  // Forgets a Done that was acknowledged or SUPERSEDED; a superseded attempt that is queued or runs
  // is dropped. Returns whether the attempt was held. Each job has its own attempt numbers, so the
  // driver compares the job first.
  bool OnDoneAnswer(Attempt attempt, bool superseded);
  struct Held {
    Work work;
    MapVersion v1;
    bool begun = false;
    bool done = false;
  };
  std::vector<Held> HeldForHello() const;      // queued, running, or with an unanswered Done
  std::vector<DoneReport> Unanswered() const;  // sent again in every session, in order

  // --- running one attempt at a time
  const Work* NextToBegin() const;  // the front of the queue if no attempt runs
  // Sets V0 to the present map. EG_CHECKs that no other attempt runs.
  void Begin(Attempt attempt);
  const Work* running() const;
  // Declares that the running attempt will push `update` to `shards` (already intersected with its
  // targets), which are unsettled from now on. Call it once per update, before its first push
  // leaves.
  void Expect(UpdateIndex update, const std::vector<ShardId>& shards);
  // The shards of `update` that are still unsettled.
  std::vector<ShardId> Unsettled(UpdateIndex update) const;
  bool AllSettled() const;
  // Line 15. `server_version` is the V of a STALE answer.
  Disposition OnPushAnswer(Attempt attempt, UpdateIndex update, ShardId shard, PushAnswer answer,
                           MapVersion server_version);
  // [38] (shard, updates) for each shard that only some of the running attempt's declared updates
  // touch, in rising order.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> TouchedLess() const;
  // Line 16. Returns whether an attempt runs, has declared all its updates and every push is
  // settled.
  bool MayFinish(bool all_declared) const;
  // Ends the running attempt; returns its report and keeps it until OnDoneAnswer. EG_CHECKs
  // MayFinish(true).
  DoneReport Finish();
  // Ends a running or queued attempt without a Done (Failed was sent, the worker drains, or the
  // attempt is superseded). Returns whether it was held.
  bool Drop(Attempt attempt);
  void DropJob(JobUid job);           // the job has ended: drops its work, its Dones and its map
  bool Holds(Attempt attempt) const;  // queued, running or unanswered
  std::size_t queued() const { return queued_.size(); }
  static constexpr std::size_t kQueuedMax = 4096;

 private:
  struct Running {
    Work work;
    MapVersion v0, v1;
    std::map<std::uint32_t, std::set<ShardId>> unsettled;  // update -> shards
    std::uint32_t updates = 0;                             // number of declared updates
    std::vector<std::uint32_t> touched = {};               // by shard: number that touch it
  };
  OverBudget over_budget_;
  ShardMap map_;
  Term term_;
  std::deque<Work> queued_;
  std::optional<Running> running_;
  std::deque<DoneReport> unanswered_;
};

}  // namespace evergrad::worker

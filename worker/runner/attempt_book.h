// The worker's half of the ledger protocol (LEDGER lines 14 to 17 and 26). The book tracks the
// attempts that the worker holds, the pushes that are settled, and the reports. The book is a pure
// state machine, without clock, threads or I/O. Its driver is the runner. Numbers in brackets are
// lines of LEDGER, which also defines V0 and V1. Not thread-safe; used on the runner's executor.
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
  std::string server;  // identity; "" if no server holds the shard
  friend bool operator==(const ShardPlace&, const ShardPlace&) = default;
};
struct ShardMap {
  MapVersion version;
  std::vector<ShardPlace> shards;  // indexed by shard number
  JobUid job{};                    // versions of different jobs cannot be compared
};

// The part of a grant that exists only in jobs of the type `functions`.
struct FunctionWork {
  std::string function, arguments;
};

// Work that the coordinator has granted. With all_targets, `targets` is empty, and every shard that
// an update touches is a target.
struct Work {
  JobUid job;
  ClosureId closure;
  Attempt attempt;
  WorkKind kind = WorkKind::kTrain;
  bool all_targets = true;
  std::set<ShardId> targets;
  std::shared_ptr<const FunctionWork> function = nullptr;  // shared by the copies of this work
  bool first = false;                                      // Grant.first: precedes other work
  // LEDGER lines 34 and 36: each push carries the proof of its Grant, and the name that this worker
  // had at the time of the Grant.
  std::string proof = {}, granted_to = {};
};

// The content of a Done. The book keeps the report unchanged until the Done is answered, and the
// driver resends it in each session [16]. The driver stores the payload (metrics, describe, …) by
// attempt.
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
  kSettled,  // the push needs no further action
  // STALE with a newer map version. The push is sent again when a map >= `wait_for` has arrived.
  kWaitForMap,
  // STALE without a newer map version, a transport error, BUSY, or OVER_BUDGET in a job with
  // `on_over_budget: pause`. The push is sent again after a delay (10 ms to 1 s, doubling).
  kBackoff,
  // The book has dropped the attempt after SUPERSEDED or REFUSED, or the attempt is not
  // running.
  kDropAttempt,
  kFail,  // INVALID, or OVER_BUDGET in a job with `on_over_budget: fail`
};
struct Disposition {
  Next next = Next::kSettled;
  MapVersion wait_for;
};

class AttemptBook {
 public:
  enum class OverBudget { kFail, kPause };  // effect of OVER_BUDGET on the attempt [15]
  explicit AttemptBook(OverBudget over_budget = OverBudget::kFail) : over_budget_(over_budget) {}

  // Sets the reaction to OVER_BUDGET for all later attempts, which belong to one job.
  void SetOverBudget(OverBudget over_budget) { over_budget_ = over_budget; }

  // --- session
  // Drops all attempts that `adopted` does not name, and returns them [26]. (Line 26 requires this
  // drop only for attempts of older terms. An attempt of this term that `adopted` does not name was
  // superseded while the worker was disconnected. Such an attempt cannot be a new grant, because
  // grants come only inside a session, and none has arrived since the Hello.) An adopted attempt
  // may have been dropped since the Hello. For each adopted attempt that the book no longer holds
  // (Holds), the driver must answer AttemptDropped; otherwise the coordinator would wait for it
  // forever.
  std::vector<Attempt> OnRegistered(Term term, const std::set<Attempt>& adopted);
  // Replaces the present map by `map`. Ignores a map of the same job with a lower version, unless
  // `replace` is set.
  void OnMap(ShardMap map, bool replace = false);
  const ShardMap& map() const { return map_; }
  // Appends the work to the queue. Work with `first` precedes all other work and is ordered by
  // closure. Returns false if the attempt is already held, or if kQueuedMax attempts are
  // queued; the driver answers AttemptDropped in the second case.
  bool OnGrant(Work work);
  // Removes and returns a queued attempt, which the driver then gives back to the coordinator.
  // Returns {} if the attempt is not queued.
  std::vector<Attempt> OnRecall(Attempt attempt);
  // Processes the coordinator's answer to a Done. Forgets the Done, if the book has it. Otherwise,
  // if `superseded`, drops the attempt if it is queued or running. Returns whether the attempt was
  // held. Each job has its own attempt numbers, so the driver compares the job first.
  bool OnDoneAnswer(Attempt attempt, bool superseded);
  struct Held {
    Work work;
    MapVersion v1;
    bool begun = false;
    bool done = false;
  };
  // Returns the attempts that are queued, running, or have an unanswered Done.
  std::vector<Held> HeldForHello() const;
  std::vector<DoneReport> Unanswered() const;  // resent in every session, in this order

  // --- running one attempt at a time
  // Returns the front of the queue, or null if an attempt runs or the queue is empty.
  const Work* NextToBegin() const;
  // Begins the queued attempt, and sets its V0 to the version of the present map. No other attempt
  // may run (EG_CHECK).
  void Begin(Attempt attempt);
  const Work* running() const;  // null if no attempt runs
  // Declares that the running attempt will push `update` to `shards`, the shards of the update that
  // are targets of the attempt. These shards count as unsettled from now on. The caller declares
  // each update once, before its first push leaves.
  void Expect(UpdateIndex update, const std::vector<ShardId>& shards);
  // Returns the shards of `update` whose pushes are not settled yet.
  std::vector<ShardId> Unsettled(UpdateIndex update) const;
  bool AllSettled() const;  // an attempt runs, and every declared push of it is settled
  // Processes an answer to a push [15]. `server_version` is the map version V of a STALE answer.
  Disposition OnPushAnswer(Attempt attempt, UpdateIndex update, ShardId shard, PushAnswer answer,
                           MapVersion server_version);
  // Returns each shard that only some of the declared updates of the running attempt touch, with
  // the number of these updates. Shards are in rising order [38].
  std::vector<std::pair<std::uint32_t, std::uint32_t>> TouchedLess() const;
  // Returns whether an attempt runs, all its updates are declared, and every push is settled
  // [16].
  bool MayFinish(bool all_declared) const;
  // Ends the running attempt, returns its report, and keeps the report until OnDoneAnswer.
  // MayFinish(true) must hold (EG_CHECK).
  DoneReport Finish();
  // Ends a running or queued attempt without a Done, because Failed was sent, the worker drains, or
  // the attempt is superseded. Returns whether the attempt was held.
  bool Drop(Attempt attempt);
  void DropJob(JobUid job);           // the job has ended: drops its work, its Dones and its map
  bool Holds(Attempt attempt) const;  // the attempt is queued, running or unanswered
  std::size_t queued() const { return queued_.size(); }
  static constexpr std::size_t kQueuedMax = 4096;

 private:
  struct Running {
    Work work;
    MapVersion v0, v1;
    std::map<std::uint32_t, std::set<ShardId>> unsettled;  // update -> shards
    std::uint32_t updates = 0;                             // number of declared updates
    std::vector<std::uint32_t> touched = {};  // by shard: the number of updates that touch it
  };
  OverBudget over_budget_;
  ShardMap map_;
  Term term_;
  std::deque<Work> queued_;
  std::optional<Running> running_;
  std::deque<DoneReport> unanswered_;
};

}  // namespace evergrad::worker

// The worker's half of the ledger protocol (LEDGER lines 14 to 17 and 26): which attempts it holds,
// what is settled, what it reports. A pure state machine: no clock, no threads, no I/O. Not
// thread-safe; the runner's executor calls it.
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
  std::string server;  // identity; "" when nobody holds it
  friend bool operator==(const ShardPlace&, const ShardPlace&) = default;
};
struct ShardMap {
  MapVersion version;
  std::vector<ShardPlace> shards;  // by shard number
  JobUid job{};                    // versions of two jobs do not compare
};

// Of a functions job.
struct FunctionWork {
  std::string function, arguments;
};

// Work as granted. Empty targets with all_targets: every shard that the update touches.
struct Work {
  JobUid job;
  ClosureId closure;
  Attempt attempt;
  WorkKind kind = WorkKind::kTrain;
  bool all_targets = true;
  std::set<ShardId> targets;
  std::shared_ptr<const FunctionWork> function = nullptr;  // shared by the copies of this work
  bool first = false;                                      // as its Grant says
  // [34], [36] What goes with its pushes: the proof of its Grant, and the name that this worker had
  // then.
  std::string proof = {}, granted_to = {};
};

// What is sent in Done, kept and resent unchanged until answered [16]. The payload (metrics,
// describe, …) is kept by the driver under the attempt.
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
  kSettled,     // nothing more to do for this (update, shard)
  kWaitForMap,  // STALE above our map: resend once a map >= `wait_for` is here
  kBackoff,  // STALE at our map, transport error, BUSY, OVER_BUDGET under `pause`: resend after a
             // delay (10 ms to 1 s, doubling)
  kDropAttempt,  // SUPERSEDED | REFUSED: the attempt has been dropped from the book. Also for an
                 // answer to an attempt that does not run any more
  kFail,         // INVALID | OVER_BUDGET under `fail`
};
struct Disposition {
  Next next = Next::kSettled;
  MapVersion wait_for;
};

class AttemptBook {
 public:
  enum class OverBudget { kFail, kPause };  // what OVER_BUDGET means for the attempt [15]
  explicit AttemptBook(OverBudget over_budget = OverBudget::kFail) : over_budget_(over_budget) {}

  // Of the job whose attempts follow.
  void SetOverBudget(OverBudget over_budget) { over_budget_ = over_budget; }

  // --- session
  // Line 26: one message. Whatever `adopted` does not name is dropped; returns what was dropped.
  // (The line says so of older terms; one of this term that is not named was superseded while the
  // session was cut. Grants come only inside a session, so nothing can have been added since the
  // Hello.) An attempt may have been dropped since the Hello: for each adopted one that the book
  // does not hold any more (Holds) the driver answers AttemptDropped, or it would be waited for
  // without end.
  std::vector<Attempt> OnRegistered(Term term, const std::set<Attempt>& adopted);
  // A map of the same job with a version below the held one is ignored, unless `replace`.
  void OnMap(ShardMap map, bool replace = false);
  const ShardMap& map() const { return map_; }
  // Queued behind what is held; what is to be run `first` before all that is not, in the order of
  // closures. False: held already, or kQueuedMax wait; the driver then answers AttemptDropped for
  // the latter.
  bool OnGrant(Work work);
  std::vector<Attempt> OnRecall(Attempt attempt);  // given back if it has not begun
  // Acknowledged or SUPERSEDED: forgotten either way; a queued or running attempt that is
  // superseded is dropped. Returns whether it was held. Attempt numbers are a job's own: the driver
  // compares the job first.
  bool OnDoneAnswer(Attempt attempt, bool superseded);
  struct Held {
    Work work;
    MapVersion v1;
    bool begun = false;
    bool done = false;
  };
  std::vector<Held> HeldForHello() const;      // not begun, running, Done unanswered
  std::vector<DoneReport> Unanswered() const;  // resent in every session, in order

  // --- running one attempt at a time
  const Work* NextToBegin() const;  // front of the queue when nothing runs
  // Fixes V0 = the map held now. EG_CHECK: something runs already.
  void Begin(Attempt attempt);
  const Work* running() const;
  // Declares that the running attempt will push `update` to `shards` (already intersected with its
  // targets): unsettled. Once per update, before its first push leaves.
  void Expect(UpdateIndex update, const std::vector<ShardId>& shards);
  // The shards of `update` still unsettled.
  std::vector<ShardId> Unsettled(UpdateIndex update) const;
  bool AllSettled() const;
  // Line 15. `server_version`: V in a STALE answer.
  Disposition OnPushAnswer(Attempt attempt, UpdateIndex update, ShardId shard, PushAnswer answer,
                           MapVersion server_version);
  // [38] Of the running attempt's declared updates: the shards that fewer than all of them touch,
  // rising, with how many do.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> TouchedLess() const;
  // Line 16. Returns whether an attempt runs, has declared all its updates and every push is
  // settled.
  bool MayFinish(bool all_declared) const;
  // Ends the running attempt; returns its report and keeps it until OnDoneAnswer. EG_CHECKs
  // MayFinish(true).
  DoneReport Finish();
  // The running or queued attempt ends without a Done (Failed sent, drained, superseded). Returns
  // whether it was held.
  bool Drop(Attempt attempt);
  void DropJob(JobUid job);           // the job has ended: everything of it goes, its map too
  bool Holds(Attempt attempt) const;  // queued, running or unanswered
  std::size_t queued() const { return queued_.size(); }
  static constexpr std::size_t kQueuedMax = 4096;

 private:
  struct Running {
    Work work;
    MapVersion v0, v1;
    std::map<std::uint32_t, std::set<ShardId>> unsettled;  // update -> shards
    std::uint32_t updates = 0;                             // declared
    std::vector<std::uint32_t> touched = {};               // by shard: how many of them touch it
  };
  OverBudget over_budget_;
  ShardMap map_;
  Term term_;
  std::deque<Work> queued_;
  std::optional<Running> running_;
  std::deque<DoneReport> unanswered_;
};

}  // namespace evergrad::worker

// The source of a job's closures. The source decides which closures may be granted, which workers
// can run them, and what happens when a closure ends. A plan is the source of training and counting
// jobs (planned_closures.h); clients are the source of functions jobs (scheduled_closures.h).
//
// Not thread-safe: only the control executor calls it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "coordinator/closures/closure_book.h"
#include "coordinator/closures/update_account.h"
#include "coordinator/jobs/epoch_account.h"
#include "coordinator/jobs/function_calls.h"
#include "coordinator/jobs/granter.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/job_worker.h"
#include "coordinator/jobs/json_lines.h"
#include "coordinator/jobs/worker_pin.h"
#include "evergrad/v1/api.pb.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class CheckpointRounds;
class JournalWriter;
class TaskTotals;
class WorkerClaims;

// The calls that a source makes to its job while it grants closures.
class GrantActions {
 public:
  // Returns whether the worker can be given work now.
  virtual bool Usable(const JobWorker& worker, MonoTime now) const = 0;
  virtual WorkerPin::Choice PinnedWorker() = 0;
  virtual bool GrantsBlocked() = 0;  // Returns true while no worker may get work.
  // Returns the number of attempts that the worker may hold.
  virtual std::uint32_t LimitOf(const JobWorker& worker) const = 0;
  virtual void RecallAttempt(JobWorker* worker, Attempt attempt, JobWorker::Held* held) = 0;
  // `regrant` is true if the closure was granted before.
  virtual void SendTraining(JobWorker& worker, const ClosureBook::Granted& granted,
                            bool regrant) = 0;
  // Gives up the repair of a closure (LEDGER line 20b). The closure still counts as succeeded. The
  // updates that the shards of the repair lost with a server are not made again.
  virtual void GiveUpRepair(ClosureId closure, Attempt attempt, absl::string_view why) = 0;

 protected:
  ~GrantActions() = default;
};

// The other parts of the job that a source reads and changes. They outlive it.
struct ClosureSourceParts {
  EpochAccount* epochs;
  TaskTotals* totals;
  const CheckpointRounds* rounds;
  WorkerClaims* claims;
  JournalWriter* journal;
  GrantActions* grants;
  std::function<EpochAccount::Context()> account_context;
  // `revoke` and `calls` are for a source with callers (function_calls.h, function_closures.h).
  std::function<void(ClosureId, const ClosureBook::Current&)> revoke;
  FunctionCalls::Hooks calls;
};

class ClosureSource : protected JobPart {
 public:
  ClosureSource(const JobPart& part, const ClosureSourceParts& parts)
      : JobPart(part), parts_(parts) {}
  virtual ~ClosureSource() = default;

  // Returns true if clients schedule the closures and learn how each of them ends, false if the
  // closures come from a plan, in epochs.
  virtual bool has_callers() const { return false; }
  virtual FunctionCalls* calls() { return nullptr; }  // Null if there are no callers.

  // --- grants.
  // Returns the number of the first closure that must not be granted before the next barrier.
  virtual std::uint64_t Limit() const = 0;
  // Tells the book which new closures may be granted.
  virtual void UpdateNewLimit() = 0;
  virtual void Grant(Granter& granter, JobWorkers& workers) = 0;
  virtual void FillGrant(ClosureId, v1::Grant*) const {}  // Sets the function and its arguments.
  // Returns how many of `workers` workers the job could use now.
  virtual std::uint64_t UsefulWorkers(std::size_t workers) const = 0;
  // Returns how many workers the job could use if it had them: the number of closures that can run
  // at the same time. A barrier that holds back closures for a moment does not lower the number.
  virtual std::uint64_t WantedWorkers() const = 0;
  // Returns the functions of which a useful worker must have at least one, or nullopt if every
  // worker is useful.
  virtual std::optional<std::set<std::string>> WantedFunctions(const JobWorkers&) const {
    return std::nullopt;
  }
  virtual bool CanRun(const JobWorker&, ClosureId) const { return true; }
  // Returns whether the job knows the closure. A source with callers knows the closures whose
  // schedule() call is in the journal. After a power failure the journal may lack the schedule()
  // call of a closure that a worker still holds.
  virtual bool Knows(ClosureId) const { return true; }
  // Returns how many times the limit JobOptions::closures_behind_max has begun to prevent new
  // grants since the previous call of this function.
  virtual std::uint64_t TakeWindowRefusals() { return 0; }

  // --- ends.
  // Returns InvalidArgument if the Done is malformed.
  virtual absl::Status Check(const v1::Done&) const { return absl::OkStatus(); }
  // Counts the first success of the closure.
  virtual void OnCounted(const std::string& worker, ClosureId closure, const v1::Done& done) = 0;
  // Returns the number of updates that a repair has made again. `done` is the Done that ends the
  // repair.
  virtual std::uint64_t StepsOf(ClosureId closure, const v1::Done& done) const = 0;
  enum class OnError {
    kRetry,        // The closure is retried. A user's error, or too many machine errors in a row,
                   // ends the job.
    kFailClosure,  // FailClosure is called, and the job continues.
    kGiveUpRepair
  };
  // `failures` is the number of machine errors in a row before this one.
  virtual OnError Judge(bool user_error, bool repair, std::uint32_t failures) const = 0;
  virtual void FailClosure(ClosureId, v1::ErrorDetail) {}
  // Counts a closure whose updates are lost (LEDGER line 20b). Returns the number of updates that
  // each affected shard has lost, or 0 if the closure is in no plan.
  virtual std::uint64_t OnLost(ClosureId closure) = 0;
  // Returns the name of the closure for the text of an error, with a space before it.
  virtual std::string NameOf(ClosureId closure) const = 0;

  // --- phases
  virtual std::string ReadyText(const v1::DescribeResult& described) const = 0;
  // Returns true if the job can advance once all closures below Limit() have ended, false while
  // clients may still schedule closures.
  virtual bool Complete() const { return true; }
  // Returns nullopt while a closure is open. Otherwise returns a text that says that the job waits
  // for its next closure, or "" if no closure follows.
  virtual std::optional<std::string> IdleText() const { return std::nullopt; }
  // If closures wait although there are usable workers, returns the reason as text. Otherwise
  // returns "".
  virtual std::string WaitingForWorker(const JobWorkers&, MonoTime) const { return ""; }
  // Compares the number of updates of each shard at the job's end with the expected number (LEDGER
  // line 38).
  virtual UpdateAccount::Finding CompareUpdates(
      const std::vector<v1::ShardState>& shards) const = 0;
  struct Ends {
    std::uint64_t scheduled = 0, failed = 0;
  };
  // Returns the numbers that the source has counted itself, at the end of the job, or nullopt if
  // the book counts them.
  virtual std::optional<Ends> CountedEnds() const { return std::nullopt; }
  virtual void Clear() {}  // Drops all state that an ended job does not need.

  // --- checkpoints
  virtual bool WantsRound() const { return false; }  // True if a client waits for a round.
  // Called after each tick at which the wanted round could begin.
  virtual void OnRoundTick() {}
  virtual void OnRoundEnded() {}  // Called before the round's manifest is made.
  virtual void OnSaved(const v1::Manifest&) {}
  // Called at each tick, and after each answer of a server to a Close.
  virtual void CheckClosing() {}

  // --- views and the journal
  virtual void FillStatus(v1::JobStatus* status) const = 0;
  virtual void FillResult(Json*) const {}  // Adds the source's own section of result.json.
  virtual void Fill(v1::JobSnapshot*) const {}
  virtual absl::Status Read(const v1::JobSnapshot&) { return absl::OkStatus(); }
  // Returns InvalidArgument if the note names a closure beyond the plan. `ended` is true if the job
  // has ended. The snapshot of an ended job already has the final sums.
  virtual absl::Status ReadNote(const v1::JobNote& note, bool ended) = 0;
  virtual void BeginLife(Record*) {}  // Called when a life of the coordinator begins (LEDGER line
                                      // 18). The source may add to the record.

 protected:
  const ClosureSourceParts parts_;
};

// The methods of a GrantPolicy that are the same for all sources.
class ClosureGrants : public GrantPolicy {
 public:
  ClosureGrants(GrantActions* actions, ClosureBook* book, MonoTime now)
      : actions_(*actions), book_(*book), now_(now) {}
  std::uint32_t LimitOf(const JobWorker& worker) override { return actions_.LimitOf(worker); }
  bool Blocked() override { return actions_.GrantsBlocked(); }
  bool RegrantsWait() override { return book_.regrants_wait(); }
  void Recall(JobWorker& worker, Attempt attempt) override {
    actions_.RecallAttempt(&worker, attempt, &worker.held.at(attempt));
  }

 protected:
  // `newest` is the value of next_new() of the book before this grant. Closures with lower numbers
  // had been granted before.
  void Send(JobWorker& worker, const ClosureBook::Granted& granted, std::uint64_t newest) {
    actions_.SendTraining(worker, granted, granted.repair || granted.closure.value() < newest);
  }
  GrantActions& actions_;
  ClosureBook& book_;
  const MonoTime now_;
};

}  // namespace evergrad::coordinator

// The source of a job's closures: the closures that may be granted, to which workers, and what
// follows when one of them ends. A plan is the source of training and counting jobs
// (planned_closures.h), clients are the source of functions jobs (scheduled_closures.h).
//
// Not thread-safe: the control executor's.
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

// The requests of a source to its job while closures are granted.
class GrantActions {
 public:
  // The worker can be given work at this moment.
  virtual bool Usable(const JobWorker& worker, MonoTime now) const = 0;
  virtual WorkerPin::Choice PinnedWorker() = 0;
  virtual bool GrantsBlocked() = 0;                                  // Nobody gets anything now.
  virtual std::uint32_t LimitOf(const JobWorker& worker) const = 0;  // Attempts that it may hold.
  virtual void RecallAttempt(JobWorker* worker, Attempt attempt, JobWorker::Held* held) = 0;
  // `regrant`: the closure had been granted before.
  virtual void SendTraining(JobWorker& worker, const ClosureBook::Granted& granted,
                            bool regrant) = 0;
  // [20b] The closure stays succeeded. What its targets lost with a server is not done again.
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
  // For a source with callers (function_calls.h, function_closures.h).
  std::function<void(ClosureId, const ClosureBook::Current&)> revoke;
  FunctionCalls::Hooks calls;
};

class ClosureSource : protected JobPart {
 public:
  ClosureSource(const JobPart& part, const ClosureSourceParts& parts)
      : JobPart(part), parts_(parts) {}
  virtual ~ClosureSource() = default;

  // Clients schedule the closures and are told how each of them ends. Else a plan has the closures,
  // in epochs.
  virtual bool has_callers() const { return false; }
  virtual FunctionCalls* calls() { return nullptr; }  // Null: it has no callers.

  // --- grants
  // Closures below it may be granted before the next barrier.
  virtual std::uint64_t Limit() const = 0;
  // Tells the book which new closures may be granted.
  virtual void UpdateNewLimit() = 0;
  virtual void Grant(Granter& granter, JobWorkers& workers) = 0;
  virtual void FillGrant(ClosureId, v1::Grant*) const {}  // The function and its arguments.
  // The number of workers that can be of use now, if `workers` serve the job.
  virtual std::uint64_t UsefulWorkers(std::size_t workers) const = 0;
  // Only a worker that has one of these functions is of use; nullopt: every worker is.
  virtual std::optional<std::set<std::string>> WantedFunctions(const JobWorkers&) const {
    return std::nullopt;
  }
  virtual bool CanRun(const JobWorker&, ClosureId) const { return true; }
  // Returns whether schedule() gave the closure's number out, as far as the journal knows. It may
  // have lost the schedule() of an attempt that a worker still holds.
  virtual bool Knows(ClosureId) const { return true; }
  // How often closures that have not ended held new ones back, since the last call.
  virtual std::uint64_t TakeWindowRefusals() { return 0; }

  // --- ends
  // InvalidArgument: the Done is malformed.
  virtual absl::Status Check(const v1::Done&) const { return absl::OkStatus(); }
  // The first success of the closure.
  virtual void OnCounted(const std::string& worker, ClosureId closure, const v1::Done& done) = 0;
  // Updates that a repair with this Done has made again.
  virtual std::uint64_t StepsOf(ClosureId closure, const v1::Done& done) const = 0;
  enum class OnError {
    kRetry,        // A user's error ends the job, and so do too many others in a row.
    kFailClosure,  // The job continues: FailClosure.
    kGiveUpRepair
  };
  // `failures`: errors of machines in a row, before this one.
  virtual OnError Judge(bool user_error, bool repair, std::uint32_t failures) const = 0;
  virtual void FailClosure(ClosureId, v1::ErrorDetail) {}
  // [20b] Returns the number of updates of the closure that each of its shards has lost; 0 if it is
  // in no plan.
  virtual std::uint64_t OnLost(ClosureId closure) = 0;
  // The closure as the text of an error names it, with a space before it.
  virtual std::string NameOf(ClosureId closure) const = 0;

  // --- phases
  virtual std::string ReadyText(const v1::DescribeResult& described) const = 0;
  // No closures follow but those below Limit().
  virtual bool Complete() const { return true; }
  // nullopt: some closure is open. Else the text of the wait for the next one; "": none follows.
  virtual std::optional<std::string> IdleText() const { return std::nullopt; }
  // What the closures wait for while there are usable workers; "": nothing.
  virtual std::string WaitingForWorker(const JobWorkers&, MonoTime) const { return ""; }
  // [38] Compares the shards at the end of the job with what they must hold.
  virtual UpdateAccount::Finding CompareUpdates(
      const std::vector<v1::ShardState>& shards) const = 0;
  struct Ends {
    std::uint64_t scheduled = 0, failed = 0;
  };
  // What the source has counted itself, at the end of the job; nullopt: nothing.
  virtual std::optional<Ends> CountedEnds() const { return std::nullopt; }
  virtual void Clear() {}  // The job has ended: drops what only a living job needs.

  // --- checkpoints
  virtual bool WantsRound() const { return false; }  // Somebody waits for one.
  virtual void OnRoundTick() {}                      // A wanted round had its turn.
  virtual void OnRoundEnded() {}                     // Before its manifest is made.
  virtual void OnSaved(const v1::Manifest&) {}
  virtual void CheckClosing() {}  // A server may have answered, or is gone.

  // --- views and the journal
  virtual void FillStatus(v1::JobStatus* status) const = 0;
  virtual void FillResult(Json*) const {}  // Its own section of result.json.
  virtual void Fill(v1::JobSnapshot*) const {}
  virtual absl::Status Read(const v1::JobSnapshot&) { return absl::OkStatus(); }
  // InvalidArgument: the note names a closure beyond the plan. `ended`: the job's snapshot has the
  // sums.
  virtual absl::Status ReadNote(const v1::JobNote& note, bool ended) = 0;
  virtual void BeginLife(Record*) {}  // LEDGER line 18: may add to the record.

 protected:
  const ClosureSourceParts parts_;
};

// The part of a GrantPolicy that is the same for all sources.
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
  // `newest`: the first closure that had not been granted before this one was.
  void Send(JobWorker& worker, const ClosureBook::Granted& granted, std::uint64_t newest) {
    actions_.SendTraining(worker, granted, granted.repair || granted.closure.value() < newest);
  }
  GrantActions& actions_;
  ClosureBook& book_;
  const MonoTime now_;
};

}  // namespace evergrad::coordinator

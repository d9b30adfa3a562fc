// The training attempts of a job: sends grants to workers, and takes their answers. (For closures
// that only read see reading_work.h.)
//
//   ClosureSource::Grant ─▶ SendTraining ─▶ OnDone: the ledger decides, the turn answers
//                                       └▶ OnFailed, OnDropped ─▶ the closure is granted again
//
// A closure that has failed, or that a worker gave back unasked, can be granted again after a wait.
// While the start-up window is open (LEDGER line 18), Dones that cannot be judged yet are kept.
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from the host.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/time/clock.h"
#include "coordinator/jobs/closure_source.h"
#include "coordinator/jobs/closure_totals.h"
#include "coordinator/jobs/death_watch.h"
#include "coordinator/jobs/done_turn.h"
#include "coordinator/jobs/failpoint_hold.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/job_worker.h"
#include "coordinator/jobs/journal_writer.h"
#include "coordinator/jobs/worker_claims.h"
#include "coordinator/jobs/worker_roster.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class TrainingWork final : public GrantActions, private JobPart {
 public:
  // The other parts of the job that this class changes. They outlive it.
  struct Parts {
    WorkerRoster* roster;
    WorkerClaims* claims;
    DeathWatch* deaths;
    DoneTurn* turn;
    JournalWriter* journal;
    ClosureTotals* totals;
    const std::unique_ptr<ClosureSource>* source;  // The source is made later.
  };
  TrainingWork(const JobPart& part, const Parts& parts)
      : JobPart(part), parts_(parts), source_(*parts.source) {}

  // --- grants
  bool Usable(const JobWorker& worker, MonoTime now) const override {
    return parts_.roster->Usable(worker, now);
  }
  WorkerPin::Choice PinnedWorker() override { return parts_.roster->Pinned(); }
  bool GrantsBlocked() override;  // Evaluates the failpoint coordinator.before_grant.
  std::uint32_t LimitOf(const JobWorker& worker) const override;
  void RecallAttempt(JobWorker* worker, Attempt attempt, JobWorker::Held* held) override {
    parts_.roster->Recall(worker, attempt, held);
  }
  void SendTraining(JobWorker& worker, const ClosureBook::Granted& granted, bool regrant) override;
  void GiveUpRepair(ClosureId closure, Attempt attempt, absl::string_view why) override;

  // --- answers
  void OnDone(JobWorker* worker, const v1::Done& done, bool window_open);
  void CloseWindow();  // Judges the kept Dones. The caller ends the turn.
  // Handles a failed attempt. `elsewhere` is true if the worker cannot take part and another worker
  // gets the closure.
  void OnFailed(const JobWorker& worker, const v1::Failed& failed, bool elsewhere,
                v1::ErrorDetail cause);
  // Takes an attempt that a worker gives back. `asked` is true if the coordinator has recalled the
  // attempt; other workers may then get the closure at once.
  void OnDropped(const JobWorker& worker, const v1::AttemptDropped& dropped, bool asked);
  // Tells the worker that its attempt is void, because the closure was cancelled.
  void OnCancelled(ClosureId closure, const ClosureBook::Current& current);

  // --- closures that wait until they may be granted again
  void Release(MonoTime now);  // Releases closures when their wait is over.
  void ForgetReleases() { releases_.clear(); }
  void Clear() {  // Called when the job ends.
    releases_.clear();
    deferred_.clear();
  }

 private:
  bool IsOfAnother(const JobWorker& worker, ClosureId closure, Attempt attempt) const;
  void Retry(ClosureId closure, Attempt attempt, const JobWorker& worker, v1::ErrorDetail cause);
  void ForgetErrors(ClosureId closure);

  struct Deferred {
    TaskId task;
    v1::Done done;
  };
  const Parts parts_;
  const std::unique_ptr<ClosureSource>& source_;
  v1::CoordinatorMessage message_;                   // A member, to reuse its memory.
  std::map<std::uint64_t, std::uint32_t> failures_;  // Number of failures in a row, by closure.
  std::multimap<MonoTime, std::pair<ClosureId, Attempt>> releases_;
  std::vector<Deferred> deferred_;
  FailpointHold hold_{"coordinator.before_grant"};
};

}  // namespace evergrad::coordinator

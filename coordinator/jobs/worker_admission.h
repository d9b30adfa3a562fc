// Handles workers that come to a job and leave it. The class decides which attempts a worker keeps
// when it registers again (LEDGER line 26), and which attempts other workers get when it is gone.
//
//   Admit (fills the Registered) ─▶ Ready ─▶ grants ─▶ OnGone, or Release to another job
//   Admit ─▶ Withhold ─▶ Ready ─▶ Speaks ─▶ grants, for a worker that has said nothing since its
//   Hello
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from the host.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/time/clock.h"
#include "coordinator/jobs/death_watch.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/job_notices.h"
#include "coordinator/jobs/job_phases.h"
#include "coordinator/jobs/reading_round.h"
#include "coordinator/jobs/task_totals.h"
#include "coordinator/jobs/worker_claims.h"
#include "coordinator/jobs/worker_roster.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class WorkerAdmission : private JobPart {
 public:
  struct Parts {
    const JobPhases* phases;
    const WorkerClaims* claims;
    const JobNotices* notices;
    WorkerRoster* roster;
    ReadingRound* reading;
    DeathWatch* deaths;
    TaskTotals* totals;
  };
  struct Hooks {
    std::function<bool(ClosureId)> knows;  // See ClosureSource::Knows.
    // Called when a worker keeps a training attempt.
    std::function<void(ClosureId, Attempt)> adopted;
    // Requests a snapshot, for state that notes do not hold.
    std::function<void()> want_whole;
  };
  // All of `parts` outlive this object.
  WorkerAdmission(const JobPart& part, const Parts& parts, Hooks hooks)
      : JobPart(part), parts_(parts), hooks_(std::move(hooks)) {}

  // Called when a worker registers. Fills the job's fields of `registered` and sends nothing to the
  // worker. Membership gives the worker no work before `backoff_until`, because processes of its
  // identity died repeatedly. Attempts of `former` are released unless they are adopted.
  void Admit(TaskId task, const std::string& identity, MonoTime backoff_until,
             const std::optional<FormerTask>& former, const v1::Hello& hello,
             v1::Registered* registered);
  // Called when the Registered was sent. This method and the other bool methods below return false
  // if `task` is no worker of the job.
  bool Ready(TaskId task);
  void Withhold(TaskId task);  // The worker gets no work before Speaks is called.
  bool Speaks(TaskId task);    // Also returns false if the worker was not withheld.
  bool OnLeaving(TaskId task, const std::string& reason);  // A repeated call changes nothing.
  bool OnGone(TaskId task, absl::string_view reason, bool leaving);
  bool Release(TaskId task);  // Called when the worker serves another job.

 private:
  void AdoptAttempts(const v1::Hello& hello, JobWorker* worker, v1::Registered* registered);
  bool AdoptReading(const v1::HeldAttempt& said, JobWorker* worker);
  bool IsOfAnother(TaskId holder, const JobWorker& worker);
  bool CheckProof(const v1::HeldAttempt& said, Attempt attempt, const JobWorker& worker);
  void ReplaceFormer(const FormerTask& former, JobWorker* worker);
  void BeginTotals(const JobWorker& worker);
  void TellPauses(const std::string& gone);
  JobWorker* Find(TaskId task) { return parts_.roster->Find(task); }

  const Parts parts_;
  const Hooks hooks_;
};

}  // namespace evergrad::coordinator

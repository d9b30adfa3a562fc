// Draws the consequences of a task's death for a job: it finds a closure that is to blame, ends a
// job that makes no progress, and gives a task that dies repeatedly no work for a while (poison.h,
// death_backoff.h).
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from the host.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/time/clock.h"
#include "coordinator/jobs/death_backoff.h"
#include "coordinator/jobs/event_log.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/job_worker.h"
#include "coordinator/jobs/poison.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::v1 {
class JobCounters;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

class DeathWatch : private JobPart {
 public:
  // `events` outlives this object. `name_of` returns the name of a closure for the text of an
  // error, with a space before it.
  DeathWatch(const JobPart& part, EventLog* events, std::function<std::string(ClosureId)> name_of);

  const DeathBackoff& backoff() const { return backoff_; }

  // --- deaths. `worker` is null for a server. `host` is the host of the process, "" if it is
  // unknown. If `leaving` is true, the task had announced its end, and its end does not count as a
  // death.
  void OnDeath(Role role, const std::string& identity, absl::string_view reason, bool leaving,
               const JobWorker* worker, const std::string& host);
  // Counts the stalled work of a worker as a death of the worker while it ran `blamed`.
  void OnStall(MonoTime now, std::optional<PoisonRule::Running> blamed) {
    poison_.OnDeath(now, blamed);
  }
  // Judges the deaths that are older than JobOptions::together (poison.h). The call may end the
  // job.
  void Judge();

  // --- progress
  void OnFirstSuccess();  // Called when a closure has succeeded for the first time.
  void OnDescribed();     // Called when the job has been described.
  void OnRepaired() { repairs_ended_ = true; }
  void OnLeft(DeathLimit::Again work, std::uint64_t left) { limit_.OnLeft(work, left); }
  // Called when the worker has completed some work.
  void OnWorkerProgress(const std::string& worker);
  void OnEnded(ClosureId closure) { poison_.OnEnded(closure); }

  // --- questions.
  // Returns whether the server has died again and again, and holds no shards now.
  bool DiesIdle(const std::string& server) const;
  // Adds the tasks that get no work now, including those of `workers` to which membership gives no
  // work.
  void FillStatus(const JobWorkers& workers, v1::JobStatus* status) const;

  // --- the journal. It has the number of deaths without progress, and nothing else of this class.
  void FillCounters(v1::JobCounters* counters) const;
  void ReadCounters(const v1::JobCounters& counters);

 private:
  std::optional<PoisonRule::Running> RunningOf(const JobWorker* worker) const;
  bool HoldsShards(const std::string& server) const;
  void SayBacksOff(const DeathBackoff::Record& record);
  void CreditServers();

  EventLog* const events_;
  const std::function<std::string(ClosureId)> name_of_;
  PoisonRule poison_;
  DeathLimit limit_;
  DeathBackoff backoff_;
  bool repairs_ended_ = false;   // Repairs have ended since the last call of Judge.
  bool servers_served_ = false;  // Closures have succeeded since the last call of CreditServers.
};

}  // namespace evergrad::coordinator

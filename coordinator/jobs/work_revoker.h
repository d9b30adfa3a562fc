// Takes the work of a worker away and gives it to others: of a worker whose work has stopped
// advancing, and of one that cannot reach a server (reach_watch.h).
//
// The worker is told that its attempts are superseded, and gets no work for a while. Not
// thread-safe: the control executor's. No clock and no I/O but through the host.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "coordinator/jobs/closure_source.h"
#include "coordinator/jobs/death_watch.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/job_worker.h"
#include "coordinator/jobs/poison.h"
#include "coordinator/jobs/reach_watch.h"
#include "coordinator/jobs/reading_round.h"
#include "coordinator/jobs/worker_roster.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class WorkRevoker : private JobPart {
 public:
  struct Parts {
    WorkerRoster* roster;
    ReadingRound* reading;
    DeathWatch* deaths;
    const std::unique_ptr<ClosureSource>* source;  // Made later.
  };
  // What `parts` points to outlives this object.
  WorkRevoker(const JobPart& part, const Parts& parts);

  // Looks once in a while. A worker loses its work if the work has not advanced a step for
  // step_timeout, which counts as a death of the worker, or if it cannot reach a server. Work that
  // stalls again and again ends the job.
  void Check(bool window_open);
  const ReachWatch& reach() const { return reach_; }

 private:
  struct Stalled {
    std::string what = "its work";
    std::optional<PoisonRule::Running> blamed = std::nullopt;
    ReadingRound::Closure* reading = nullptr;  // The closure, if it only reads.
  };
  Stalled StalledWork(const JobWorker& worker) const;
  void RevokeStalled(JobWorker& worker);
  bool OthersCanRun(const JobWorker& of, const std::vector<const JobWorker*>& able) const;
  void PassOn(JobWorker& worker, const v1::UnreachedServer& from);
  void Supersede(JobWorker& worker);  // All its attempts.

  const Parts parts_;
  const std::unique_ptr<ClosureSource>& source_;
  ReachWatch reach_;
};

}  // namespace evergrad::coordinator

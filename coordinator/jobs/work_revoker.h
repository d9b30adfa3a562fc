// Revokes the work of a worker if the work has stopped advancing, or if the worker cannot reach a
// server (reach_watch.h). Other workers then get the work.
//
// The worker is told that its attempts are superseded, and gets no work for a while. Not
// thread-safe: only the control executor calls it. Clock and I/O come from the host.
#pragma once

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
    const std::unique_ptr<ClosureSource>* source;  // The source is made later.
  };
  // All of `parts` outlive this object.
  WorkRevoker(const JobPart& part, const Parts& parts);

  // Called at each tick; checks all workers from time to time. A worker loses its work if the work
  // has not advanced by a step for step_timeout, which counts as a death of the worker. A worker
  // also loses its work if it cannot reach a server. Work that stalls repeatedly ends the job.
  void Check(bool window_open);
  const ReachWatch& reach() const { return reach_; }

 private:
  struct Stalled {
    std::string what = "its work";
    std::optional<PoisonRule::Running> blamed = std::nullopt;
    ReadingRound::Closure* reading = nullptr;  // Set if the closure only reads.
  };
  Stalled StalledWork(const JobWorker& worker) const;
  void RevokeStalled(JobWorker& worker);
  bool OthersCanRun(const JobWorker& of, const std::vector<const JobWorker*>& able) const;
  void PassOn(JobWorker& worker, const v1::UnreachedServer& from);
  void Supersede(JobWorker& worker);  // Tells the worker that all its attempts are void.

  const Parts parts_;
  const std::unique_ptr<ClosureSource>& source_;
  ReachWatch reach_;
};

}  // namespace evergrad::coordinator

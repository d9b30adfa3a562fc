// Watches for live workers that cannot reach a live server (reach_rule.h), and passes their work to
// workers that can reach it.
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from the host.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/time/clock.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/reach_rule.h"
#include "coordinator/jobs/worker_roster.h"

namespace evergrad::coordinator {

class ReachWatch : private JobPart {
 public:
  struct Hooks {
    // Returns whether one of the workers `able`, or a worker of another job, can do this worker's
    // work.
    std::function<bool(const JobWorker&, const std::vector<const JobWorker*>& able)> others_can;
    // Passes the work of the worker to others.
    std::function<void(JobWorker&, const v1::UnreachedServer& from)> pass_on;
  };
  // `roster` outlives this object.
  ReachWatch(const JobPart& part, WorkerRoster* roster, Hooks hooks);

  // Passes on the work of workers that cannot reach a server. Calls within 100 ms of the previous
  // check do nothing. If no other worker can do the work, or if the job is deterministic, the
  // worker keeps the work, because the network may recover. An event then reports the wait, once
  // for each pair of worker and server.
  void Check();
  // Returns a server that the worker needs and cannot reach, or null if no such server is known.
  const v1::UnreachedServer* FindUnreached(const JobWorker& worker) const;

  // If no worker makes progress, returns a text about the workers that cannot reach a server, else
  // "".
  std::string WaitingFor() const;
  // If no worker makes progress, returns a text about the answers that workers wait for, else "".
  // For example, a server that is running out of memory answers slowly before it becomes
  // unreachable.
  std::string WaitingForAnswers() const;

 private:
  const Hooks hooks_;
  WorkerRoster* const roster_;
  ReachRule rule_;
  MonoTime next_check_{0};
  std::set<std::string> said_;  // Pairs "worker>server" that an event has reported.
};

}  // namespace evergrad::coordinator

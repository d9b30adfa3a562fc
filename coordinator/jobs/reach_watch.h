// Watches for workers that live but cannot reach a server that lives (reach_rule.h), so that other
// workers, which can reach it, do their work.
//
// Not thread-safe: the control executor's. No clock and no I/O but through the host.
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
    // One of the workers `able`, or of another job's, can do the work of this worker.
    std::function<bool(const JobWorker&, const std::vector<const JobWorker*>& able)> others_can;
    // The work of the worker goes to others.
    std::function<void(JobWorker&, const v1::UnreachedServer& from)> pass_on;
  };
  // `roster` outlives this object.
  ReachWatch(const JobPart& part, WorkerRoster* roster, Hooks hooks);

  // Passes on the work of workers that are cut off from a server; looks once in a while. Where
  // nobody else can do its work, a worker keeps it, because the network may recover, and an event
  // says so once for each server.
  void Check();
  // Null: as far as is known, the worker reaches every server that it needs.
  const v1::UnreachedServer* CutOffFrom(const JobWorker& worker) const;

  // The workers that wait in vain for a server, while no worker works; else "".
  std::string WaitingFor() const;
  // The answers that the workers wait for, while no worker works; else "". A server that is out
  // of memory, for example, is only slow at first, and cannot be reached later.
  std::string WaitingForAnswers() const;

 private:
  const Hooks hooks_;
  WorkerRoster* const roster_;
  ReachRule rule_;
  MonoTime next_check_{0};
  std::set<std::string> said_;  // "worker>server": told that nobody else can do its work.
};

}  // namespace evergrad::coordinator

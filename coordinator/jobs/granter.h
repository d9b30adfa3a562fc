// Decides which worker gets the next closure, and which worker gives back a closure that it has not
// begun. The rules are the same for all kinds of jobs; a GrantPolicy has the differences. Pure;
// only the control executor calls it.
//
// The next closure goes to the worker that holds the fewest attempts. If several workers hold the
// fewest, it goes to the one that registered first. Each worker has a limit for its attempts. A
// closure that was granted before does not wait for a worker below its limit, because this wait may
// take seconds: each worker may hold up to two such closures beyond its limit, and runs them first.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "coordinator/jobs/job_worker.h"

namespace evergrad::coordinator {

class GrantPolicy {
 public:
  enum class Given {
    kGranted,       // The closure was granted, or its repair was given up. The caller may ask for
                    // the next closure.
    kNothingForIt,  // There is no closure for this worker, nor for any worker with the same
                    // functions.
    kNothing        // There is no closure for any worker.
  };
  virtual ~GrantPolicy() = default;
  virtual bool MayTake(const JobWorker& worker) = 0;  // Returns whether the worker may get work.
  // Returns the number of attempts that the worker may hold. The number falls only when fewer
  // closures are left to grant.
  virtual std::uint32_t LimitOf(const JobWorker& worker) = 0;
  virtual bool Blocked() = 0;       // Returns whether no worker may get work now.
  virtual bool RegrantsWait() = 0;  // Returns whether there may be closures to grant again.
  // Grants `worker` its next closure. If `new_ones` is false, only a closure that was granted
  // before is granted.
  virtual Given Grant(JobWorker& worker, bool new_ones) = 0;

  // Returns whether the worker should get work from another worker.
  virtual bool IsIdle(const JobWorker& worker) = 0;
  virtual bool CanRun(const JobWorker& worker, ClosureId closure) = 0;
  virtual void Recall(JobWorker& worker, Attempt attempt) = 0;
};

class Granter {
 public:
  enum class Outcome { kBlocked, kFull, kNothingLeft };
  // Grants all closures that can be granted. Returns kNothingLeft if some worker could take more
  // closures than there are.
  Outcome Grant(JobWorkers& workers, GrantPolicy& policy);
  // Asks busy workers to give back closures that they have not begun, because idle workers can run
  // them. For each idle worker one closure is asked for, from the worker that holds the most
  // closures. A closure that was asked for earlier and is not given back yet counts for one of the
  // idle workers.
  static void Recall(JobWorkers& workers, GrantPolicy& policy);

 private:
  // A worker, preceded by the number of attempts that it holds.
  using Candidate = std::pair<std::size_t, JobWorker*>;
  std::vector<Candidate> candidates_;  // A member, to reuse its memory.
};

}  // namespace evergrad::coordinator

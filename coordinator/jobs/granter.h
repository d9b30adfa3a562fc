// Decides which worker gets the next closure, and which one gives back a closure that it has not
// begun. The rules are the same for all kinds of jobs; a GrantPolicy holds the differences. Pure;
// the control executor's.
//
// Closures go to the worker that holds least, among equals to the oldest registration, up to the
// limit of each. Closures that had been granted before do not wait for a limit, which may be
// seconds away: up to two of them come on top, and a worker runs them first.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "coordinator/jobs/job_worker.h"

namespace evergrad::coordinator {

class GrantPolicy {
 public:
  enum class Given {
    kGranted,       // Or settled in another way: the next closure may be asked for.
    kNothingForIt,  // Nor for any worker that has the same functions.
    kNothing        // Nor for any other worker.
  };
  virtual ~GrantPolicy() = default;
  virtual bool MayTake(const JobWorker& worker) = 0;  // Whether it gets anything now.
  // Attempts that it may hold; falls only while there is less to grant.
  virtual std::uint32_t LimitOf(const JobWorker& worker) = 0;
  virtual bool Blocked() = 0;       // Nobody gets anything now.
  virtual bool RegrantsWait() = 0;  // Closures that had been granted before may wait.
  // Grants `worker` its next closure; `new_ones`: also one that nobody has had.
  virtual Given Grant(JobWorker& worker, bool new_ones) = 0;

  virtual bool IsIdle(const JobWorker& worker) = 0;  // It waits for what another has not begun.
  virtual bool CanRun(const JobWorker& worker, ClosureId closure) = 0;
  virtual void Recall(JobWorker& worker, Attempt attempt) = 0;
};

class Granter {
 public:
  enum class Outcome { kBlocked, kFull, kNothingLeft };
  // Grants what can be granted. kNothingLeft: some worker could take more, and there is nothing.
  Outcome Grant(JobWorkers& workers, GrantPolicy& policy);
  // Idle workers get closures that others have not begun: one for each idle worker is asked back
  // from the worker that holds most. Closures that were asked back before and have not come count.
  static void Recall(JobWorkers& workers, GrantPolicy& policy);

 private:
  using Candidate = std::pair<std::size_t, JobWorker*>;  // Attempts that the worker holds.
  std::vector<Candidate> candidates_;                    // Kept for its memory.
};

}  // namespace evergrad::coordinator

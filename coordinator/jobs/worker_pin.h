// The worker of a deterministic job (DECISIONS, "Deterministic"): one worker does all the work, at
// first the one that registered first. When it cannot work, another one of the same build and
// settings may; any other would end with other bits, so the job waits, and says so once. Pure; the
// control executor's.
#pragma once

#include <functional>
#include <string>

#include "coordinator/jobs/job_worker.h"
#include "coordinator/jobs/metrics_file.h"
#include "coordinator/jobs/unfit_workers.h"

namespace evergrad::v1 {
class JobSnapshot;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

class WorkerPin {
 public:
  // The only worker that gets work; null: nobody may now. `usable`: whether a worker can be given
  // work at this moment.
  JobWorker* Choose(JobWorkers& workers, const UnfitWorkers& unfit,
                    const std::function<bool(const JobWorker&)>& usable, const EventSink& event);
  // Nothing has this worker's bits yet: any other one may be chosen.
  void Release(const std::string& identity);

  // The result of Choose for a job that need not be deterministic.
  struct Choice {
    bool on = false;              // The job is deterministic:
    JobWorker* worker = nullptr;  // only this worker gets work; null: none does.
    bool Excludes(const JobWorker& other) const { return on && worker != &other; }
  };

  bool waits() const { return waits_; }  // The newest Choose found nobody.
  const std::string& identity() const { return identity_; }
  const std::string& compute() const { return compute_; }

  void Fill(v1::JobSnapshot* snapshot) const;
  void Read(const v1::JobSnapshot& snapshot);

 private:
  std::string WhyNot(const JobWorker* holder, const UnfitWorkers& unfit) const;

  std::string identity_, compute_;  // Whose work it is, and what makes its bits; "": not chosen.
  bool waits_ = false, wait_told_ = false;
};

}  // namespace evergrad::coordinator

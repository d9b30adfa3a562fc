// Chooses the worker of a deterministic job (DECISIONS, "Deterministic"). One worker does all the
// work. At first this is the worker that registered first. If it cannot work, a worker with the
// same build and settings may replace it. Any other worker would produce different bits, so the job
// waits instead, and reports this once. Pure; only the control executor calls it.
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
  // Returns the only worker that may get work, or null if none may get work now. `usable` returns
  // whether a worker can be given work now.
  JobWorker* Choose(JobWorkers& workers, const UnfitWorkers& unfit,
                    const std::function<bool(const JobWorker&)>& usable, const EventSink& event);
  // Allows Choose to replace this worker by any other, because no result depends on this worker
  // yet.
  void Release(const std::string& identity);

  // The result of Choose, for a job that may be deterministic or not.
  struct Choice {
    bool on = false;              // True if the job is deterministic.
    JobWorker* worker = nullptr;  // The only worker that gets work, or null for none.
    bool Excludes(const JobWorker& other) const { return on && worker != &other; }
  };

  bool waits() const { return waits_; }  // True if the newest call of Choose returned null.
  const std::string& identity() const { return identity_; }
  const std::string& compute() const { return compute_; }

  void Fill(v1::JobSnapshot* snapshot) const;
  void Read(const v1::JobSnapshot& snapshot);

 private:
  std::string WhyNot(const JobWorker* holder, const UnfitWorkers& unfit) const;

  std::string identity_,
      compute_;  // The chosen worker, and its build and settings; "" before the first choice.
  bool waits_ = false, wait_told_ = false;
};

}  // namespace evergrad::coordinator

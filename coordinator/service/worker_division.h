// Decides which job each worker serves when several jobs run.
//
// A worker serves one job at a time. Every 100 ms `scheduler/shares` divides the workers. A worker
// that must change jobs gets no more work of its old job, and changes once it holds no work.
// Functions jobs get only workers that have one of their functions. A cordoned worker gives back
// its work in the same way, and then serves no job.
//
// Pure, apart from its host, which shows jobs and workers and moves workers. Not thread-safe: the
// control executor owns it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/time/clock.h"

namespace evergrad::coordinator {

// The interface through which the division reads jobs and workers and moves workers. Each JobUid
// that is passed to the host belongs to a running job that RunningJobs() has just listed.
class DivisionHost {
 public:
  virtual ~DivisionHost() = default;
  // Returns the jobs in the order in which they began.
  virtual std::vector<JobUid> RunningJobs() const = 0;
  virtual bool IsRunning(JobUid job) const = 0;
  virtual double Share(JobUid job) const = 0;
  // UsefulWorkers returns the number of workers that the job can use now. BusyWorkers returns the
  // number of the job's workers that have held work within `since`.
  virtual std::uint32_t UsefulWorkers(JobUid job) const = 0;
  virtual std::uint32_t BusyWorkers(JobUid job, std::chrono::milliseconds since) const = 0;
  // Returns whether the job is deterministic. The division does not take the worker of a
  // deterministic job for another job.
  virtual bool KeepsItsWorker(JobUid job) const = 0;
  // Returns the functions for which the job's closures wait; nullopt if the job can use any worker.
  virtual std::optional<std::set<std::string>> WantedFunctions(JobUid job) const = 0;
  // Returns whether the worker holds work of the job.
  virtual bool Holds(JobUid job, TaskId worker) const = 0;

  // Returns the workers that are present, not leaving and not cordoned.
  virtual std::vector<TaskId> Workers() const = 0;
  virtual bool IsLeavingOrGone(TaskId worker) const = 0;
  virtual bool IsCordoned(TaskId worker) const = 0;
  // Returns true if the worker has reported that it cannot run the job, and it is too early to try
  // again.
  virtual bool IsUnfit(JobUid job, TaskId worker) const = 0;
  virtual bool HasOneOf(TaskId worker, const std::set<std::string>& functions) const = 0;

  // Makes the job grant nothing more to the worker and take back the work that the worker has not
  // begun.
  virtual void CallBack(JobUid job, TaskId worker) = 0;
  // Lets the worker serve `job` from now on, unless the worker is gone. Calls
  // WorkerDivision::Assign.
  virtual void Introduce(JobUid job, TaskId worker) = 0;
  // Ends the worker's service for `job`, which may have ended. The worker will be introduced to
  // `next`, unless that job has ended.
  virtual void Release(JobUid job, TaskId worker, JobUid next) = 0;
  virtual void SetWorkersElsewhere(JobUid job, std::uint32_t workers) = 0;
};

class WorkerDivision {
 public:
  // `host` outlives the division. If the workers do not divide evenly, the jobs take turns at the
  // remaining workers, and `turn` is the length of one turn.
  WorkerDivision(DivisionHost* host, std::chrono::milliseconds turn) : host_(host), turn_(turn) {}

  // --- jobs

  // Adds a job that has begun. The job's account of received service (worker-seconds divided by its
  // share) starts at the lowest account of the other jobs, because a job has no claim to service
  // from the time before it began.
  void Begin(JobUid job);
  // Adds a job that was restored from the journal. Its account starts at 0.
  void Restore(JobUid job) { accounts_[job] = Account{}; }
  // Forgets the job and the assignments of its workers.
  void End(JobUid job);
  double worker_seconds(JobUid job) const;  // worker-seconds that the job has received
  std::uint32_t workers(JobUid job) const;  // number of workers that serve the job now

  // --- workers.
  // Returns the job that the worker serves, or nullopt. The job may have ended.
  std::optional<JobUid> JobOf(TaskId worker) const;
  void Assign(TaskId worker, JobUid job) { serving_.insert_or_assign(worker, Serving{job, {}}); }
  void Remove(TaskId worker) { serving_.erase(worker); }
  void RemoveAll() { serving_.clear(); }
  // Among the jobs that can use the worker, returns the job that lacks the most workers. If no such
  // job lacks workers, returns the first running job, or nullopt if no job runs or the worker is
  // cordoned.
  std::optional<JobUid> JobFor(TaskId worker);

  // --- division.
  // Moves workers that have given back their work. If `may_divide`, also divides the workers among
  // the jobs, every 100 ms, or at once after DivideSoon.
  void Tick(MonoTime now, bool may_divide);
  void DivideSoon() { next_division_ = MonoTime{0}; }

 private:
  struct Serving {
    JobUid job;
    // The job for which the worker is called back; kNoJob for a cordoned worker.
    std::optional<JobUid> next;
  };
  struct Account {
    double served = 0;   // worker-seconds divided by share, plus the initial amount
    double seconds = 0;  // worker-seconds
  };
  // One running job while the workers are divided.
  struct WorkerShare {
    JobUid job;
    std::optional<std::set<std::string>> functions;  // see WantedFunctions
    std::uint32_t suited = 0, has = 0, target = 0;
    std::int64_t missing() const { return static_cast<std::int64_t>(target) - has; }
  };
  std::vector<WorkerShare> Divide(const std::vector<TaskId>& workers) const;
  std::uint32_t SetTargets(std::vector<WorkerShare>& shares, std::size_t begin, std::size_t end,
                           std::uint32_t among) const;
  bool Suits(const WorkerShare& share, TaskId worker) const;
  std::optional<JobUid> RunningJobOf(TaskId worker) const;
  void CountService(MonoTime now);
  void CallBackCordoned();
  void MoveWorkers();
  void ReplaceUnfit(std::vector<WorkerShare>& shares);
  void Fill(std::vector<WorkerShare>& shares, std::size_t which, std::vector<TaskId>& unserving);
  // Returns the worker that the job `which` takes from another job, or the end of serving_. Also
  // returns the share of the other job if that job can use the worker.
  std::map<TaskId, Serving>::iterator FindSpare(std::vector<WorkerShare>& shares, std::size_t which,
                                                WorkerShare** donor);

  DivisionHost* const host_;
  const std::chrono::milliseconds turn_;
  std::map<JobUid, Account> accounts_;  // accounts of the running jobs
  std::map<TaskId, Serving> serving_;   // a worker that is missing here serves no job
  MonoTime next_division_{0}, divided_at_{0}, turn_ends_{0};
  bool turn_over_ = false;
};

}  // namespace evergrad::coordinator

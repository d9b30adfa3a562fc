// Decides which job each worker serves when several jobs run.
//
// A worker serves one job at a time. Every 100 ms the workers are divided by `scheduler/shares`; a
// worker that is to serve another job is called back, and moves once it holds no work any more.
// Functions jobs get only workers that have one of their functions.
//
// Pure except for its host, which shows jobs and workers and moves workers. Not thread-safe: the
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

// The jobs and workers for the division, and its effects on them. A job here is a running job, so
// it was in RunningJobs() just now.
class DivisionHost {
 public:
  virtual ~DivisionHost() = default;
  // In the order in which they began.
  virtual std::vector<JobUid> RunningJobs() const = 0;
  virtual bool IsRunning(JobUid job) const = 0;
  virtual double Share(JobUid job) const = 0;
  // Workers that the job can use now; workers of the job that had something to do within `since`.
  virtual std::uint32_t UsefulWorkers(JobUid job) const = 0;
  virtual std::uint32_t BusyWorkers(JobUid job, std::chrono::milliseconds since) const = 0;
  // Deterministic jobs: their worker is not taken for the turn of another job.
  virtual bool KeepsItsWorker(JobUid job) const = 0;
  // Functions that the job's closures wait for; nullopt: the job can use any worker.
  virtual std::optional<std::set<std::string>> WantedFunctions(JobUid job) const = 0;
  virtual bool Holds(JobUid job, TaskId worker) const = 0;  // work of the job

  // Workers that are present and not leaving.
  virtual std::vector<TaskId> Workers() const = 0;
  virtual bool IsLeavingOrGone(TaskId worker) const = 0;
  // The worker has said that it cannot take part in the job, and is not tried again yet.
  virtual bool IsUnfit(JobUid job, TaskId worker) const = 0;
  virtual bool HasOneOf(TaskId worker, const std::set<std::string>& functions) const = 0;

  // The job gives the worker nothing more and takes back what it has not begun.
  virtual void CallBack(JobUid job, TaskId worker) = 0;
  // The worker serves `job` from now on, unless it is gone; calls WorkerDivision::Assign.
  virtual void Introduce(JobUid job, TaskId worker) = 0;
  // The worker has left `job`, which may have ended, and will be introduced to `next`, unless that
  // has ended.
  virtual void Release(JobUid job, TaskId worker, JobUid next) = 0;
  virtual void SetWorkersElsewhere(JobUid job, std::uint32_t workers) = 0;
};

class WorkerDivision {
 public:
  // `host` outlives the division. `turn`: how long a job keeps the workers that do not divide
  // evenly while another job waits for its turn.
  WorkerDivision(DivisionHost* host, std::chrono::milliseconds turn) : host_(host), turn_(turn) {}

  // --- jobs
  // Records that a job has begun. It counts as served as little as the least served job: it did not
  // wait during the service of the others.
  void Begin(JobUid job);
  // Adds a job of the journal, which counts as not served.
  void Restore(JobUid job) { accounts_[job] = Account{}; }
  // Forgets the job, and that workers serve it.
  void End(JobUid job);
  double worker_seconds(JobUid job) const;  // that workers have served it
  std::uint32_t workers(JobUid job) const;  // that serve it now

  // --- workers
  // The job that the worker serves; nullopt: none. The job may have ended.
  std::optional<JobUid> JobOf(TaskId worker) const;
  void Assign(TaskId worker, JobUid job) { serving_.insert_or_assign(worker, Serving{job, {}}); }
  void Remove(TaskId worker) { serving_.erase(worker); }
  void RemoveAll() { serving_.clear(); }
  // Returns the job that lacks most workers of the worker's kind; otherwise the first running job,
  // or nullopt if none runs.
  std::optional<JobUid> JobFor(TaskId worker);

  // --- division
  // Moves workers that have given back their work; every 100 ms, or at once after DivideSoon,
  // divides the workers among the jobs. `may_divide` false: only moves.
  void Tick(MonoTime now, bool may_divide);
  void DivideSoon() { next_division_ = MonoTime{0}; }

 private:
  struct Serving {
    JobUid job;
    std::optional<JobUid> next;  // the worker is called back for it
  };
  struct Account {
    double served = 0;   // worker-seconds divided by share, and the amount credited at its start
    double seconds = 0;  // worker-seconds
  };
  // One running job while the workers are divided.
  struct Part {
    JobUid job;
    std::optional<std::set<std::string>> functions;  // see WantedFunctions
    std::uint32_t suited = 0, has = 0, target = 0;
    std::int64_t missing() const { return static_cast<std::int64_t>(target) - has; }
  };
  std::vector<Part> Divide(const std::vector<TaskId>& workers) const;
  std::uint32_t SetTargets(std::vector<Part>& parts, std::size_t begin, std::size_t end,
                           std::uint32_t among) const;
  bool Suits(const Part& part, TaskId worker) const;
  std::optional<JobUid> RunningJobOf(TaskId worker) const;
  void CountService(MonoTime now);
  void MoveWorkers();
  void ReplaceUnfit(std::vector<Part>& parts);
  void Fill(std::vector<Part>& parts, std::size_t which, std::vector<TaskId>& unserving);
  // The worker that the part takes from another job, and that job's part if the worker is of use
  // there. End of serving_: none.
  std::map<TaskId, Serving>::iterator FindSpare(std::vector<Part>& parts, std::size_t which,
                                                Part** donor);

  DivisionHost* const host_;
  const std::chrono::milliseconds turn_;
  std::map<JobUid, Account> accounts_;  // of the running jobs
  std::map<TaskId, Serving> serving_;   // a worker that is not in it serves no job
  MonoTime next_division_{0}, divided_at_{0}, turn_ends_{0};
  bool turn_over_ = false;
};

}  // namespace evergrad::coordinator

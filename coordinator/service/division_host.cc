#include "coordinator/service/division_host.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace evergrad::coordinator {
namespace {

class ServiceDivisionHost final : public DivisionHost {
 public:
  ServiceDivisionHost(ServiceParts parts, JobSupervisor* supervisor)
      : parts_(parts), supervisor_(supervisor) {}

  std::vector<JobUid> RunningJobs() const override {
    std::vector<JobUid> jobs;
    for (const Job* job : parts_.jobs->Running()) jobs.push_back(job->uid());
    return jobs;
  }
  bool IsRunning(JobUid job) const override { return parts_.jobs->Running(job) != nullptr; }
  double Share(JobUid job) const override { return Of(job).share(); }
  std::uint32_t UsefulWorkers(JobUid job) const override { return Of(job).useful_workers(); }
  std::uint32_t BusyWorkers(JobUid job, std::chrono::milliseconds since) const override {
    return Of(job).busy_workers(since);
  }
  bool KeepsItsWorker(JobUid job) const override { return Of(job).keeps_its_worker(); }
  std::optional<std::set<std::string>> WantedFunctions(JobUid job) const override {
    return Of(job).wanted_functions();
  }
  bool Holds(JobUid job, TaskId worker) const override { return Of(job).Holds(worker); }

  std::vector<TaskId> Workers() const override {
    std::vector<TaskId> workers;
    for (const auto& [task, number] : parts_.sessions->tasks()) {
      const TaskEntry* entry = parts_.membership->Find(task);
      if (entry != nullptr && entry->role == Role::kWorker && entry->state != TaskState::kGone &&
          !entry->leaving && !IsCordoned(task))
        workers.push_back(task);
    }
    return workers;
  }
  bool IsLeavingOrGone(TaskId worker) const override {
    const TaskEntry* entry = parts_.membership->Find(worker);
    return entry == nullptr || entry->leaving;
  }
  bool IsCordoned(TaskId worker) const override { return parts_.reports->IsCordoned(worker); }
  bool IsUnfit(JobUid job, TaskId worker) const override {
    const TaskReport* report = parts_.reports->Find(worker);
    return report != nullptr && Of(job).IsUnfit(report->hello.process_uid());
  }
  bool HasOneOf(TaskId worker, const std::set<std::string>& functions) const override {
    const TaskReport* report = parts_.reports->Find(worker);
    if (report == nullptr) return false;
    const auto& its = report->hello.functions();
    return std::any_of(its.begin(), its.end(),
                       [&](const std::string& function) { return functions.contains(function); });
  }

  void CallBack(JobUid job, TaskId worker) override { Of(job).CallBack(worker); }
  void Introduce(JobUid job, TaskId worker) override { supervisor_->Introduce(Of(job), worker); }
  void Release(JobUid job, TaskId worker, JobUid next) override {
    Job* const before = parts_.jobs->Running(job);
    if (before != nullptr) before->ReleaseWorker(worker);
    const Job* const after = parts_.jobs->Running(next);
    const TaskEntry* const entry = parts_.membership->Find(worker);
    if (after == nullptr || entry == nullptr) return;
    parts_.logger->Info(absl::StrCat("worker moved: task=worker/", entry->identity,
                                     " from=", before == nullptr ? "" : before->name(),
                                     " to=", after->name()));
  }
  void SetWorkersElsewhere(JobUid job, std::uint32_t workers) override {
    Of(job).SetWorkersElsewhere(workers);
  }

 private:
  // A job that ends during the division is still in the table.
  Job& Of(JobUid job) const { return *parts_.jobs->Get(job); }
  const ServiceParts parts_;
  JobSupervisor* const supervisor_;
};

}  // namespace

std::unique_ptr<DivisionHost> MakeDivisionHost(ServiceParts parts, JobSupervisor* supervisor) {
  return std::make_unique<ServiceDivisionHost>(parts, supervisor);
}

}  // namespace evergrad::coordinator

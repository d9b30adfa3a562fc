// Shows the control plane's jobs and workers to WorkerDivision.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/service/control_plane.h"

namespace evergrad::coordinator {

class ControlPlane::Division final : public DivisionHost {
 public:
  explicit Division(ControlPlane* plane) : plane_(*plane) {}

  std::vector<JobUid> RunningJobs() const override {
    std::vector<JobUid> jobs;
    for (const Job* job : plane_.jobs_.Running()) jobs.push_back(job->uid());
    return jobs;
  }
  bool IsRunning(JobUid job) const override { return plane_.jobs_.Running(job) != nullptr; }
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
    for (const auto& [task, number] : plane_.sessions_.tasks()) {
      const TaskEntry* entry = plane_.membership_.Find(task);
      if (entry != nullptr && entry->role == Role::kWorker && entry->state != TaskState::kGone &&
          !entry->leaving)
        workers.push_back(task);
    }
    return workers;
  }
  bool IsLeavingOrGone(TaskId worker) const override {
    const TaskEntry* entry = plane_.membership_.Find(worker);
    return entry == nullptr || entry->leaving;
  }
  bool IsUnfit(JobUid job, TaskId worker) const override {
    const auto facts = plane_.facts_.find(worker);
    return facts != plane_.facts_.end() && Of(job).IsUnfit(facts->second.hello.process_uid());
  }
  bool HasOneOf(TaskId worker, const std::set<std::string>& functions) const override {
    const auto facts = plane_.facts_.find(worker);
    if (facts == plane_.facts_.end()) return false;
    const auto& its = facts->second.hello.functions();
    return std::any_of(its.begin(), its.end(),
                       [&](const std::string& function) { return functions.contains(function); });
  }

  void CallBack(JobUid job, TaskId worker) override { Of(job).CallBack(worker); }
  void Introduce(JobUid job, TaskId worker) override { plane_.Introduce(Of(job), worker); }
  void Release(JobUid job, TaskId worker, JobUid next) override {
    Job* const before = plane_.jobs_.Running(job);
    if (before != nullptr) before->ReleaseWorker(worker);
    const Job* const after = plane_.jobs_.Running(next);
    const TaskEntry* const entry = plane_.membership_.Find(worker);
    if (after == nullptr || entry == nullptr) return;
    plane_.parts_.logger->Info(absl::StrCat("worker moved: task=worker/", entry->identity,
                                            " from=", before == nullptr ? "" : before->name(),
                                            " to=", after->name()));
  }
  void SetWorkersElsewhere(JobUid job, std::uint32_t workers) override {
    Of(job).SetWorkersElsewhere(workers);
  }

 private:
  // A job that ends during the division is still in the table.
  Job& Of(JobUid job) const { return *plane_.jobs_.Get(job); }
  ControlPlane& plane_;
};

std::unique_ptr<DivisionHost> ControlPlane::MakeDivisionHost() {
  return std::make_unique<Division>(this);
}

}  // namespace evergrad::coordinator

#include "coordinator/service/job_table.h"

#include <algorithm>
#include <utility>

namespace evergrad::coordinator {

Job* JobTable::Get(JobUid uid) const {
  const auto found = jobs_.find(uid);
  return found == jobs_.end() ? nullptr : found->second.get();
}

Job* JobTable::Find(absl::string_view name_or_uid) const {
  if (name_or_uid.empty()) return order_.empty() ? nullptr : Get(order_.back());
  // A uid counts before all names: an older build accepted names that look like a uid.
  for (const JobUid uid : order_) {
    if (JobUidString(uid) == name_or_uid) return Get(uid);
  }
  for (auto uid = order_.rbegin(); uid != order_.rend(); ++uid) {
    if (Get(*uid)->name() == name_or_uid) return Get(*uid);
  }
  return nullptr;
}

const Job* JobTable::FindLiving(absl::string_view name) const {
  for (const auto& [uid, job] : jobs_) {
    if (!job->ended() && job->name() == name) return job.get();
  }
  return nullptr;
}

bool JobTable::HasLiving() const {
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [](const auto& one) { return !one.second->ended(); });
}

Job* JobTable::Add(std::unique_ptr<Job> job) {
  const JobUid uid = job->uid();
  order_.push_back(uid);
  queue_.push_back(uid);
  return (jobs_[uid] = std::move(job)).get();
}

void JobTable::TakeBack(JobUid uid) {
  std::erase(order_, uid);
  std::erase(queue_, uid);
  jobs_.erase(uid);
}

bool JobTable::Restore(std::unique_ptr<Job> job) {
  const JobUid uid = job->uid();
  const bool runs = job->started() && !job->ended() && !job->writing();
  if (!job->started()) queue_.push_back(uid);
  if (runs) running_.push_back(uid);
  jobs_[uid] = std::move(job);
  order_.push_back(uid);
  return runs;
}

std::vector<JobUid> JobTable::EndedBeyond(std::size_t kept_max) const {
  std::vector<JobUid> ended;
  for (const JobUid uid : order_) {
    if (Get(uid)->ended()) ended.push_back(uid);
  }
  // The job that ended first goes first. A long job is thus not forgotten in the moment of its end.
  std::stable_sort(ended.begin(), ended.end(),
                   [this](JobUid a, JobUid b) { return Get(a)->ended_ms() < Get(b)->ended_ms(); });
  ended.resize(ended.size() - std::min(ended.size(), kept_max));
  return ended;
}

void JobTable::Forget(JobUid uid) {
  jobs_.erase(uid);
  std::erase(order_, uid);
}

std::optional<std::size_t> JobTable::PlaceInQueue(JobUid uid) const {
  const auto place = std::find(queue_.begin(), queue_.end(), uid);
  if (place == queue_.end()) return std::nullopt;
  return static_cast<std::size_t>(place - queue_.begin());
}

Job* JobTable::TakeNext() {
  while (!queue_.empty() && !full()) {
    const JobUid uid = queue_.front();
    queue_.pop_front();
    Job* const job = Get(uid);
    if (job->started()) continue;
    running_.push_back(uid);
    return job;
  }
  return nullptr;
}

Job* JobTable::Running(std::optional<JobUid> uid) const {
  Job* const job = uid ? Get(*uid) : nullptr;
  if (job == nullptr || job->ended()) return nullptr;
  return std::find(running_.begin(), running_.end(), *uid) != running_.end() ? job : nullptr;
}

std::vector<Job*> JobTable::Running() const {
  std::vector<Job*> jobs;
  for (const JobUid uid : running_) {
    if (Job* const job = Get(uid); job != nullptr && !job->ended()) jobs.push_back(job);
  }
  return jobs;
}

std::vector<JobUid> JobTable::RemoveEnded() {
  std::vector<JobUid> ended;
  for (const JobUid uid : running_) {
    if (Running(uid) == nullptr) ended.push_back(uid);
  }
  for (const JobUid uid : ended) std::erase(running_, uid);
  return ended;
}

}  // namespace evergrad::coordinator

#include "coordinator/service/worker_division.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "coordinator/scheduler/shares.h"

namespace evergrad::coordinator {
namespace {

constexpr std::chrono::milliseconds kDivideEvery{100}, kIdleFor{250};
// Longest time between two divisions that counts as service, in seconds. Only the time before the
// first division is longer.
constexpr double kGapMax = 10;
constexpr JobUid kNoJob{0};  // no job has this uid

}  // namespace

void WorkerDivision::Begin(JobUid job) {
  std::optional<double> least;
  for (const auto& [other, account] : accounts_)
    least = std::min(least.value_or(account.served), account.served);
  accounts_[job] = Account{least.value_or(0), 0};
}

void WorkerDivision::End(JobUid job) {
  accounts_.erase(job);
  std::erase_if(serving_, [&](const auto& one) { return one.second.job == job; });
}

double WorkerDivision::worker_seconds(JobUid job) const {
  const auto found = accounts_.find(job);
  return found == accounts_.end() ? 0 : found->second.seconds;
}

std::uint32_t WorkerDivision::workers(JobUid job) const {
  std::uint32_t count = 0;
  for (const auto& [worker, serving] : serving_) count += serving.job == job;
  return count;
}

std::optional<JobUid> WorkerDivision::JobOf(TaskId worker) const {
  const auto found = serving_.find(worker);
  return found == serving_.end() ? std::nullopt : std::optional<JobUid>(found->second.job);
}

std::optional<JobUid> WorkerDivision::RunningJobOf(TaskId worker) const {
  const std::optional<JobUid> job = JobOf(worker);
  return job && host_->IsRunning(*job) ? job : std::nullopt;
}

bool WorkerDivision::Suits(const WorkerShare& share, TaskId worker) const {
  if (host_->IsUnfit(share.job, worker)) return false;
  return !share.functions || host_->HasOneOf(worker, *share.functions);
}

std::uint32_t WorkerDivision::SetTargets(std::vector<WorkerShare>& shares, std::size_t begin,
                                         std::size_t end, std::uint32_t among) const {
  std::vector<JobDemand> demands;
  for (std::size_t i = begin; i < end; ++i) {
    const WorkerShare& share = shares[i];
    JobDemand& demand = demands.emplace_back();
    demand.share = host_->Share(share.job);
    // A worker that has just finished an attempt counts as useful, because a short time without
    // work, such as the end of an epoch, must not move it to another job.
    demand.useful = std::min(share.suited, std::max(host_->UsefulWorkers(share.job),
                                                    host_->BusyWorkers(share.job, kIdleFor)));
    demand.has = share.has;
    demand.keeps = host_->KeepsItsWorker(share.job);
    if (const auto account = accounts_.find(share.job); account != accounts_.end())
      demand.served = account->second.served;
  }
  const std::vector<std::uint32_t> divided = WorkerTargets(among, demands, turn_over_);
  std::uint32_t sum = 0;
  for (std::size_t i = begin; i < end; ++i) sum += shares[i].target = divided[i - begin];
  return sum;
}

// Returns the shares in the order in which the jobs are given workers: functions jobs first, and
// among them the jobs with the fewest suitable workers first.
std::vector<WorkerDivision::WorkerShare> WorkerDivision::Divide(
    const std::vector<TaskId>& workers) const {
  std::vector<WorkerShare> shares;
  std::set<TaskId> with_functions;
  for (const JobUid job : host_->RunningJobs()) {
    WorkerShare& share = shares.emplace_back();
    share.job = job;
    share.functions = host_->WantedFunctions(job);
    for (const TaskId worker : workers) {
      if (!Suits(share, worker)) continue;
      ++share.suited;
      if (share.functions) with_functions.insert(worker);
      const auto serving = serving_.find(worker);
      share.has +=
          serving != serving_.end() && serving->second.next.value_or(serving->second.job) == job;
    }
  }
  std::stable_sort(shares.begin(), shares.end(), [](const WorkerShare& a, const WorkerShare& b) {
    return a.functions.has_value() != b.functions.has_value() ? a.functions.has_value()
                                                              : a.functions && a.suited < b.suited;
  });
  const auto all = static_cast<std::uint32_t>(workers.size());
  SetTargets(shares, 0, shares.size(), all);
  // If the targets of the functions jobs exceed the number of workers that have functions, the
  // functions jobs take turns at these workers, and the other jobs share the remaining workers.
  std::size_t functions_jobs = 0;
  std::uint32_t theirs = 0;
  while (functions_jobs < shares.size() && shares[functions_jobs].functions)
    theirs += shares[functions_jobs++].target;
  if (theirs > with_functions.size()) {
    theirs =
        SetTargets(shares, 0, functions_jobs, static_cast<std::uint32_t>(with_functions.size()));
    SetTargets(shares, functions_jobs, shares.size(), all - theirs);
  }
  return shares;
}

std::optional<JobUid> WorkerDivision::JobFor(TaskId worker) {
  const std::vector<JobUid> jobs = host_->RunningJobs();
  if (jobs.empty() || host_->IsCordoned(worker)) return std::nullopt;
  if (jobs.size() == 1) return jobs.front();
  const std::vector<WorkerShare> shares = Divide(host_->Workers());
  const WorkerShare* best = nullptr;
  for (const WorkerShare& share : shares) {
    if (share.missing() > 0 && Suits(share, worker) &&
        (best == nullptr || share.missing() > best->missing()))
      best = &share;
  }
  return best == nullptr ? jobs.front() : best->job;
}

void WorkerDivision::CountService(MonoTime now) {
  const double seconds =
      std::chrono::duration<double>(now - std::exchange(divided_at_, now)).count();
  std::optional<double> least;  // minimum over the jobs that have something to do
  for (auto& [job, account] : accounts_) {
    if (!host_->IsRunning(job)) continue;
    for (const auto& [worker, serving] : serving_) {
      if (serving.job != job || seconds > kGapMax) continue;
      account.seconds += seconds;
      account.served += seconds / host_->Share(job);
    }
    if (host_->UsefulWorkers(job) > 0)
      least = std::min(least.value_or(account.served), account.served);
  }
  // A job without work must not collect a claim to more service later.
  for (auto& [job, account] : accounts_) {
    if (host_->IsRunning(job) && least && host_->UsefulWorkers(job) == 0)
      account.served = std::max(account.served, *least);
  }
}

void WorkerDivision::CallBackCordoned() {
  std::vector<std::pair<JobUid, TaskId>> called_back;
  for (auto& [worker, serving] : serving_) {
    if (!host_->IsCordoned(worker) || serving.next == kNoJob) continue;
    serving.next = kNoJob;
    if (host_->IsRunning(serving.job)) called_back.emplace_back(serving.job, worker);
  }
  for (const auto& [job, worker] : called_back) host_->CallBack(job, worker);
}

void WorkerDivision::Tick(MonoTime now, bool may_divide) {
  CallBackCordoned();
  MoveWorkers();
  if (now < next_division_ || !may_divide) return;
  next_division_ = now + kDivideEvery;
  CountService(now);
  const std::vector<JobUid> jobs = host_->RunningJobs();
  if (jobs.empty()) return;
  const std::vector<TaskId> workers = host_->Workers();
  std::vector<TaskId> unserving;
  for (const TaskId worker : workers) {
    if (!RunningJobOf(worker)) unserving.push_back(worker);
  }
  for (const JobUid job : jobs) {
    std::uint32_t elsewhere = 0;
    for (const TaskId worker : workers) elsewhere += RunningJobOf(worker).value_or(job) != job;
    host_->SetWorkersElsewhere(job, elsewhere);
  }
  if (jobs.size() == 1 && unserving.empty()) return;
  turn_over_ = jobs.size() > 1 && now >= turn_ends_;
  if (turn_over_) turn_ends_ = now + turn_;
  std::vector<WorkerShare> shares = Divide(workers);
  turn_over_ = false;
  ReplaceUnfit(shares);
  for (std::size_t i = 0; i < shares.size(); ++i) Fill(shares, i, unserving);
  // A worker that serves no job and is not needed is assigned to the first job, which may soon have
  // work.
  for (const TaskId worker : unserving) host_->Introduce(jobs.front(), worker);
  MoveWorkers();
}

// If a job A lacks workers and has a worker that cannot run it, this worker goes to another job B,
// beyond the target of B. Job B can then give up a worker that can run A.
void WorkerDivision::ReplaceUnfit(std::vector<WorkerShare>& shares) {
  std::vector<std::pair<JobUid, TaskId>> called_back;
  for (auto& [worker, serving] : serving_) {
    const auto own = std::find_if(
        shares.begin(), shares.end(),
        [&serving = serving](const WorkerShare& one) { return one.job == serving.job; });
    if (serving.next || host_->IsLeavingOrGone(worker) || own == shares.end() ||
        own->missing() <= 0 || !host_->IsUnfit(own->job, worker))
      continue;
    const auto other =
        std::find_if(shares.begin(), shares.end(), [&, worker = worker](const WorkerShare& one) {
          return one.job != own->job && !host_->KeepsItsWorker(one.job) && Suits(one, worker) &&
                 std::any_of(serving_.begin(), serving_.end(), [&](const auto& s) {
                   return !s.second.next && s.second.job == one.job && Suits(*own, s.first);
                 });
        });
    if (other == shares.end()) continue;
    ++other->has;
    serving.next = other->job;
    called_back.emplace_back(own->job, worker);
  }
  for (const auto& [job, worker] : called_back) host_->CallBack(job, worker);
}

void WorkerDivision::Fill(std::vector<WorkerShare>& shares, std::size_t which,
                          std::vector<TaskId>& unserving) {
  WorkerShare& share = shares[which];
  while (share.missing() > 0) {
    const auto idle = std::find_if(unserving.begin(), unserving.end(),
                                   [&](TaskId worker) { return Suits(share, worker); });
    if (idle != unserving.end()) {
      const TaskId worker = *idle;
      unserving.erase(idle);
      ++share.has;
      host_->Introduce(share.job, worker);
      continue;
    }
    WorkerShare* donor = nullptr;
    const auto from = FindSpare(shares, which, &donor);
    if (from == serving_.end()) return;
    if (donor != nullptr) --donor->has;
    ++share.has;
    from->second.next = share.job;
    host_->CallBack(from->second.job, from->first);
  }
}

// A worker is taken from a job that has too many workers, or that cannot use the worker. A
// functions job also takes workers from the jobs after it, which can find another worker. Workers
// without work are preferred, then workers without functions that another job wants, and then the
// newest workers.
std::map<TaskId, WorkerDivision::Serving>::iterator WorkerDivision::FindSpare(
    std::vector<WorkerShare>& shares, std::size_t which, WorkerShare** donor) {
  const WorkerShare& share = shares[which];
  auto from = serving_.end();
  std::tuple<bool, bool> best;
  for (auto it = serving_.begin(); it != serving_.end(); ++it) {
    const auto& [worker, serving] = *it;
    if (serving.next || serving.job == share.job || host_->IsLeavingOrGone(worker) ||
        !Suits(share, worker))
      continue;
    const auto own = std::find_if(
        shares.begin(), shares.end(),
        [&serving = serving](const WorkerShare& one) { return one.job == serving.job; });
    if (own == shares.end()) continue;
    const bool of_use = Suits(*own, worker);
    const bool spare = !of_use || own->missing() < 0;
    const bool later = share.functions &&
                       own - shares.begin() > static_cast<std::ptrdiff_t>(which) &&
                       !host_->KeepsItsWorker(own->job);
    if (!spare && !later) continue;
    const bool wanted =
        std::any_of(shares.begin(), shares.end(), [&, worker = worker](const WorkerShare& one) {
          return one.functions && Suits(one, worker);
        });
    const std::tuple<bool, bool> rank{!host_->Holds(own->job, worker), !wanted};
    if (from != serving_.end() && rank < best) continue;
    from = it;
    *donor = of_use ? &*own : nullptr;
    best = rank;
  }
  return from;
}

void WorkerDivision::MoveWorkers() {
  std::vector<TaskId> free;
  for (const auto& [worker, serving] : serving_) {
    if (serving.next && (!host_->IsRunning(serving.job) || !host_->Holds(serving.job, worker)))
      free.push_back(worker);
  }
  for (const TaskId worker : free) {
    const auto found = serving_.find(worker);
    if (found == serving_.end()) continue;
    const Serving serving = found->second;
    serving_.erase(found);
    host_->Release(serving.job, worker, *serving.next);
    // If the next job has already ended, any job that needs the worker takes it.
    if (host_->IsRunning(*serving.next)) host_->Introduce(*serving.next, worker);
  }
}

}  // namespace evergrad::coordinator

#include "coordinator/service/worker_division.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "coordinator/scheduler/shares.h"

namespace evergrad::coordinator {
namespace {

constexpr std::chrono::milliseconds kDivideEvery{100}, kIdleFor{250};
constexpr double kGapMax = 10;  // in seconds; a longer gap is the time before the first division

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

bool WorkerDivision::Suits(const Part& part, TaskId worker) const {
  if (host_->IsUnfit(part.job, worker)) return false;
  return !part.functions || host_->HasOneOf(worker, *part.functions);
}

std::uint32_t WorkerDivision::SetTargets(std::vector<Part>& parts, std::size_t begin,
                                         std::size_t end, std::uint32_t among) const {
  std::vector<JobDemand> demands;
  for (std::size_t i = begin; i < end; ++i) {
    const Part& part = parts[i];
    JobDemand& demand = demands.emplace_back();
    demand.share = host_->Share(part.job);
    // A worker that has just finished something is not taken because of a moment without work, such
    // as the end of an epoch.
    demand.useful = std::min(part.suited, std::max(host_->UsefulWorkers(part.job),
                                                   host_->BusyWorkers(part.job, kIdleFor)));
    demand.has = part.has;
    demand.keeps = host_->KeepsItsWorker(part.job);
    if (const auto account = accounts_.find(part.job); account != accounts_.end())
      demand.served = account->second.served;
  }
  const std::vector<std::uint32_t> divided = WorkerTargets(among, demands, turn_over_);
  std::uint32_t sum = 0;
  for (std::size_t i = begin; i < end; ++i) sum += parts[i].target = divided[i - begin];
  return sum;
}

// Returns the parts in the order in which the jobs are given workers: functions jobs first, and
// among them those with the least choice.
std::vector<WorkerDivision::Part> WorkerDivision::Divide(const std::vector<TaskId>& workers) const {
  std::vector<Part> parts;
  std::set<TaskId> with_functions;
  for (const JobUid job : host_->RunningJobs()) {
    Part& part = parts.emplace_back();
    part.job = job;
    part.functions = host_->WantedFunctions(job);
    for (const TaskId worker : workers) {
      if (!Suits(part, worker)) continue;
      ++part.suited;
      if (part.functions) with_functions.insert(worker);
      const auto serving = serving_.find(worker);
      part.has +=
          serving != serving_.end() && serving->second.next.value_or(serving->second.job) == job;
    }
  }
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return a.functions.has_value() != b.functions.has_value() ? a.functions.has_value()
                                                              : a.functions && a.suited < b.suited;
  });
  const auto all = static_cast<std::uint32_t>(workers.size());
  SetTargets(parts, 0, parts.size(), all);
  // If there are fewer workers with functions than the functions jobs should get, these jobs take
  // turns at those workers, and the other jobs share the rest.
  std::size_t functions_jobs = 0;
  std::uint32_t theirs = 0;
  while (functions_jobs < parts.size() && parts[functions_jobs].functions)
    theirs += parts[functions_jobs++].target;
  if (theirs > with_functions.size()) {
    theirs =
        SetTargets(parts, 0, functions_jobs, static_cast<std::uint32_t>(with_functions.size()));
    SetTargets(parts, functions_jobs, parts.size(), all - theirs);
  }
  return parts;
}

std::optional<JobUid> WorkerDivision::JobFor(TaskId worker) {
  const std::vector<JobUid> jobs = host_->RunningJobs();
  if (jobs.empty()) return std::nullopt;
  if (jobs.size() == 1) return jobs.front();
  const std::vector<Part> parts = Divide(host_->Workers());
  const Part* best = nullptr;
  for (const Part& part : parts) {
    if (part.missing() > 0 && Suits(part, worker) &&
        (best == nullptr || part.missing() > best->missing()))
      best = &part;
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
  // A job with nothing to do must not save up service for later.
  for (auto& [job, account] : accounts_) {
    if (host_->IsRunning(job) && least && host_->UsefulWorkers(job) == 0)
      account.served = std::max(account.served, *least);
  }
}

void WorkerDivision::Tick(MonoTime now, bool may_divide) {
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
  std::vector<Part> parts = Divide(workers);
  turn_over_ = false;
  ReplaceUnfit(parts);
  for (std::size_t i = 0; i < parts.size(); ++i) Fill(parts, i, unserving);
  // A worker that serves no job waits with one of the jobs, which may have work in a moment.
  for (const TaskId worker : unserving) host_->Introduce(jobs.front(), worker);
  MoveWorkers();
}

// If a job lacks a worker and has one that cannot take part in it, that worker goes to another job,
// beyond the other job's target. The other job then has a surplus worker that can take part.
void WorkerDivision::ReplaceUnfit(std::vector<Part>& parts) {
  std::vector<std::pair<JobUid, TaskId>> called_back;
  for (auto& [worker, serving] : serving_) {
    const auto own =
        std::find_if(parts.begin(), parts.end(),
                     [&serving = serving](const Part& one) { return one.job == serving.job; });
    if (serving.next || host_->IsLeavingOrGone(worker) || own == parts.end() ||
        own->missing() <= 0 || !host_->IsUnfit(own->job, worker))
      continue;
    const auto other =
        std::find_if(parts.begin(), parts.end(), [&, worker = worker](const Part& one) {
          return one.job != own->job && !host_->KeepsItsWorker(one.job) && Suits(one, worker) &&
                 std::any_of(serving_.begin(), serving_.end(), [&](const auto& s) {
                   return !s.second.next && s.second.job == one.job && Suits(*own, s.first);
                 });
        });
    if (other == parts.end()) continue;
    ++other->has;
    serving.next = other->job;
    called_back.emplace_back(own->job, worker);
  }
  for (const auto& [job, worker] : called_back) host_->CallBack(job, worker);
}

void WorkerDivision::Fill(std::vector<Part>& parts, std::size_t which,
                          std::vector<TaskId>& unserving) {
  Part& part = parts[which];
  while (part.missing() > 0) {
    const auto idle = std::find_if(unserving.begin(), unserving.end(),
                                   [&](TaskId worker) { return Suits(part, worker); });
    if (idle != unserving.end()) {
      const TaskId worker = *idle;
      unserving.erase(idle);
      ++part.has;
      host_->Introduce(part.job, worker);
      continue;
    }
    Part* donor = nullptr;
    const auto from = FindSpare(parts, which, &donor);
    if (from == serving_.end()) return;
    if (donor != nullptr) --donor->has;
    ++part.has;
    from->second.next = part.job;
    host_->CallBack(from->second.job, from->first);
  }
}

// A worker is taken from a job that has too many, or that cannot use it. A functions job also takes
// a worker from the jobs after it, which can find another one. Workers that hold nothing are
// preferred, then those without functions that another job wants, then the newest.
std::map<TaskId, WorkerDivision::Serving>::iterator WorkerDivision::FindSpare(
    std::vector<Part>& parts, std::size_t which, Part** donor) {
  const Part& part = parts[which];
  auto from = serving_.end();
  std::tuple<bool, bool> best;
  for (auto it = serving_.begin(); it != serving_.end(); ++it) {
    const auto& [worker, serving] = *it;
    if (serving.next || serving.job == part.job || host_->IsLeavingOrGone(worker) ||
        !Suits(part, worker))
      continue;
    const auto own =
        std::find_if(parts.begin(), parts.end(),
                     [&serving = serving](const Part& one) { return one.job == serving.job; });
    if (own == parts.end()) continue;
    const bool of_use = Suits(*own, worker);
    const bool spare = !of_use || own->missing() < 0;
    const bool later = part.functions && own - parts.begin() > static_cast<std::ptrdiff_t>(which) &&
                       !host_->KeepsItsWorker(own->job);
    if (!spare && !later) continue;
    const bool wanted = std::any_of(
        parts.begin(), parts.end(),
        [&, worker = worker](const Part& one) { return one.functions && Suits(one, worker); });
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
    // If the next job has ended meanwhile, any job that needs the worker takes it.
    if (host_->IsRunning(*serving.next)) host_->Introduce(*serving.next, worker);
  }
}

}  // namespace evergrad::coordinator

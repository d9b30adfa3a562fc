#include "coordinator/service/work_times.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace evergrad::coordinator {
namespace {

double Seconds(MonoTime span) { return std::chrono::duration<double>(span).count(); }

}  // namespace

// Training closures are sized to last between 0.1 s and some tens of seconds; closures of functions
// jobs may last minutes. A wait below 10 ms is a network round trip. A wait of seconds is caused by
// a barrier, an evaluation or a lack of closures.
WorkTimes::OfJob::OfJob(metrics::Labels of)
    : labels(std::move(of)),
      closure({0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000}),
      wait({0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100}) {}

WorkTimes::WorkTimes(metrics::Registry& registry) {
  AddFamily(registry, "evergrad_coordinator_closure_seconds",
            "duration of training closures by running job, from the grant, or from the end of the "
            "worker's previous closure if that is later, to the end of the closure",
            &OfJob::closure);
  AddFamily(registry, "evergrad_coordinator_grant_wait_seconds",
            "time for which a worker held no work before a grant, by running job; 0 if the worker "
            "still held work",
            &OfJob::wait);
}

void WorkTimes::AddFamily(metrics::Registry& registry, const char* name, const char* help,
                          metrics::Histogram OfJob::*histogram) const {
  registry.AddCallbackHistograms(name, help, [shared = shared_, histogram] {
    metrics::Registry::Histograms histograms;
    MutexLock lock(&shared->mu);
    for (const auto& [uid, job] : shared->jobs) histograms.emplace_back(job.labels, job.*histogram);
    return histograms;
  });
}

WorkTimes::Worker* WorkTimes::Find(TaskId worker, JobUid job) {
  const auto found = workers_.find(worker);
  return found == workers_.end() || found->second.job != job ? nullptr : &found->second;
}

void WorkTimes::OnGrant(TaskId worker, JobUid job, const std::string& job_name, Attempt attempt,
                        bool training, MonoTime now) {
  const bool first = Find(worker, job) == nullptr;
  Worker& of = workers_[worker];
  if (first) {
    of = {};
    of.job = job;
  }
  {
    MutexLock lock(&shared_->mu);
    auto found = shared_->jobs.find(job);
    if (found == shared_->jobs.end()) {
      const metrics::Labels labels = {{"job", job_name}, {"job_uid", JobUidString(job)}};
      found = shared_->jobs.emplace(job, OfJob(labels)).first;
    }
    if (!first) found->second.wait.Observe(of.free_since ? Seconds(now - *of.free_since) : 0);
  }
  of.free_since.reset();
  if (training) of.training.insert_or_assign(attempt, now);
}

void WorkTimes::OnDone(TaskId worker, JobUid job, Attempt attempt, MonoTime now) {
  Worker* const of = Find(worker, job);
  if (of == nullptr) return;
  if (const auto held = of->training.find(attempt); held != of->training.end()) {
    MutexLock lock(&shared_->mu);
    auto found = shared_->jobs.find(job);
    if (found != shared_->jobs.end())
      found->second.closure.Observe(Seconds(now - std::max(held->second, of->last_done)));
    of->training.erase(held);
  }
  of->last_done = now;
}

void WorkTimes::OnMessageOf(TaskId worker, JobUid job, bool holds, MonoTime now) {
  Worker* const of = Find(worker, job);
  if (of == nullptr || holds || of->free_since) return;
  of->free_since = now;
  of->training.clear();  // attempts that ended without Done
}

void WorkTimes::EndJob(JobUid job) {
  std::erase_if(workers_, [&](const auto& entry) { return entry.second.job == job; });
  MutexLock lock(&shared_->mu);
  shared_->jobs.erase(job);
}

}  // namespace evergrad::coordinator

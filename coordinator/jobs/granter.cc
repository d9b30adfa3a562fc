#include "coordinator/jobs/granter.h"

#include <algorithm>

namespace evergrad::coordinator {
namespace {

// Number of regrants that a worker may hold beyond its limit.
constexpr std::size_t kRegrantsOnTop = 2;
// Limit for the arguments of the closures of one worker.
constexpr std::uint64_t kHeldBytesMax = 4ull << 20;

bool HasSpace(const JobWorker& worker, bool on_top, GrantPolicy& policy) {
  if (!worker.held.empty() && worker.held_bytes >= kHeldBytesMax) return false;
  return on_top ? worker.regrants < kRegrantsOnTop : worker.held.size() < policy.LimitOf(worker);
}

// Returns the attempt that `donor` would begin last, among its attempts that `taker` can run, or
// (0,0) if there is none. The first attempt of `donor` does not count. Sets `kept` to the number of
// training attempts of `donor` that were not recalled.
Attempt LastFor(const JobWorker& taker, const JobWorker& donor, GrantPolicy& policy,
                std::size_t* kept) {
  Attempt last;
  *kept = 0;
  for (const auto& [attempt, held] : donor.held) {
    if (held.recalled || held.kind != v1::TRAIN) continue;
    if (++*kept > 1 && policy.CanRun(taker, held.closure)) last = attempt;
  }
  return last;
}

}  // namespace

Granter::Outcome Granter::Grant(JobWorkers& workers, GrantPolicy& policy) {
  const auto behind = [](const Candidate& a, const Candidate& b) {
    return a.first != b.first ? a.first > b.first : a.second->task > b.second->task;
  };
  bool nothing_left = false;
  for (const bool on_top : {false, true}) {
    if (on_top && !policy.RegrantsWait()) break;
    candidates_.clear();
    for (auto& [task, worker] : workers) {
      if (policy.MayTake(worker) && HasSpace(worker, on_top, policy))
        candidates_.emplace_back(worker.held.size(), &worker);
    }
    std::make_heap(candidates_.begin(), candidates_.end(), behind);
    std::vector<const JobWorker*> got_nothing;
    while (!candidates_.empty()) {
      std::pop_heap(candidates_.begin(), candidates_.end(), behind);
      JobWorker& worker = *candidates_.back().second;
      const bool nothing =
          std::any_of(got_nothing.begin(), got_nothing.end(),
                      [&](const JobWorker* other) { return other->functions == worker.functions; });
      if (nothing || !HasSpace(worker, on_top, policy)) {
        candidates_.pop_back();
        continue;
      }
      if (policy.Blocked()) return Outcome::kBlocked;
      switch (policy.Grant(worker, !on_top)) {
        case GrantPolicy::Given::kGranted:
          candidates_.back().first = worker.held.size();
          std::push_heap(candidates_.begin(), candidates_.end(), behind);
          break;
        case GrantPolicy::Given::kNothingForIt:
          nothing_left |= !on_top;
          got_nothing.push_back(&worker);
          candidates_.pop_back();
          break;
        case GrantPolicy::Given::kNothing: return on_top ? Outcome::kFull : Outcome::kNothingLeft;
      }
    }
  }
  return nothing_left ? Outcome::kNothingLeft : Outcome::kFull;
}

void Granter::Recall(JobWorkers& workers, GrantPolicy& policy) {
  std::vector<const JobWorker*> idle;
  std::vector<JobWorker*> donors;  // workers that hold more than one attempt
  std::size_t recalled = 0;
  for (auto& [task, worker] : workers) {
    if (worker.held.empty() && policy.IsIdle(worker)) idle.push_back(&worker);
    if (worker.ready && worker.held.size() - worker.recalled > 1) donors.push_back(&worker);
    recalled += worker.recalled;
  }
  if (donors.empty()) return;
  for (const JobWorker* taker : idle) {
    if (recalled >= idle.size()) return;
    JobWorker* donor = nullptr;
    Attempt given;
    std::size_t most = 1;
    for (JobWorker* worker : donors) {
      if (worker->held.size() - worker->recalled <= most) continue;
      std::size_t kept = 0;
      const Attempt last = LastFor(*taker, *worker, policy, &kept);
      if (kept <= most || last == Attempt{}) continue;
      most = kept;
      donor = worker;
      given = last;
    }
    if (donor == nullptr) continue;
    policy.Recall(*donor, given);
    ++recalled;
  }
}

}  // namespace evergrad::coordinator

#include "worker/runner/attempt_book.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "worker/runner/attempt_rules.h"

namespace evergrad::worker {

std::vector<Attempt> AttemptBook::OnRegistered(Term term, const std::set<Attempt>& adopted) {
  term_ = std::max(term_, term);
  std::vector<Attempt> dropped;
  const auto gone = [&](Attempt attempt) {
    if (adopted.contains(attempt)) return false;
    dropped.push_back(attempt);
    return AttemptRules::DropsUnnamed();
  };
  std::erase_if(unanswered_, [&](const DoneReport& report) { return gone(report.work.attempt); });
  if (running_ && gone(running_->work.attempt)) running_.reset();
  std::erase_if(queued_, [&](const Work& work) { return gone(work.attempt); });
  return dropped;
}

void AttemptBook::OnMap(ShardMap map, bool replace) {
  if (!replace && map.job == map_.job && map.version < map_.version) return;
  map_ = std::move(map);
}

bool AttemptBook::OnGrant(Work work) {
  if (queued_.size() >= kQueuedMax || Holds(work.attempt)) return false;
  auto at = queued_.end();
  if (work.first)
    at = std::find_if(queued_.begin(), queued_.end(), [&](const Work& other) {
      return !other.first || other.closure > work.closure;
    });
  queued_.insert(at, std::move(work));
  return true;
}

std::vector<Attempt> AttemptBook::OnRecall(Attempt attempt) {
  std::vector<Attempt> given_back;
  if (std::erase_if(queued_, [&](const Work& work) { return work.attempt == attempt; }) > 0)
    given_back.push_back(attempt);
  return given_back;
}

bool AttemptBook::OnDoneAnswer(Attempt attempt, bool superseded) {
  if (std::erase_if(unanswered_,
                    [&](const DoneReport& report) { return report.work.attempt == attempt; }) > 0)
    return true;
  return superseded && Drop(attempt);
}

std::vector<AttemptBook::Held> AttemptBook::HeldForHello() const {
  std::vector<Held> held;
  held.reserve(unanswered_.size() + queued_.size() + 1);
  for (const DoneReport& report : unanswered_) held.push_back({report.work, report.v1, true, true});
  // The v1 of a running attempt is at least the present map, because one of its pushes may be in
  // flight under this map.
  if (running_) held.push_back({running_->work, std::max(running_->v1, map_.version), true, false});
  // Queued work has used no map yet.
  for (const Work& work : queued_) held.push_back({work, MapVersion{}, false, false});
  return held;
}

std::vector<DoneReport> AttemptBook::Unanswered() const {
  return {unanswered_.begin(), unanswered_.end()};
}

const Work* AttemptBook::NextToBegin() const {
  return running_ || queued_.empty() ? nullptr : &queued_.front();
}

void AttemptBook::Begin(Attempt attempt) {
  EG_CHECK(!running_);
  const auto it = std::find_if(queued_.begin(), queued_.end(),
                               [&](const Work& work) { return work.attempt == attempt; });
  EG_CHECK(it != queued_.end());
  running_ = Running{std::move(*it), map_.version, map_.version, {}};
  queued_.erase(it);
}

const Work* AttemptBook::running() const { return running_ ? &running_->work : nullptr; }

void AttemptBook::Expect(UpdateIndex update, const std::vector<ShardId>& shards) {
  EG_CHECK(running_.has_value());
  ++running_->updates;
  if (shards.empty()) return;
  std::vector<std::uint32_t>& touched = running_->touched;
  for (const ShardId shard : shards) {
    if (shard.value() >= touched.size()) touched.resize(shard.value() + 1);
    ++touched[shard.value()];
  }
  running_->unsettled.try_emplace(update.value(), shards.begin(), shards.end());
}

std::vector<ShardId> AttemptBook::Unsettled(UpdateIndex update) const {
  if (!running_) return {};
  const auto it = running_->unsettled.find(update.value());
  if (it == running_->unsettled.end()) return {};
  return {it->second.begin(), it->second.end()};
}

bool AttemptBook::AllSettled() const { return running_ && running_->unsettled.empty(); }

Disposition AttemptBook::OnPushAnswer(Attempt attempt, UpdateIndex update, ShardId shard,
                                      PushAnswer answer, MapVersion server_version) {
  if (!running_ || running_->work.attempt != attempt) return {Next::kDropAttempt, {}};
  const auto it = running_->unsettled.find(update.value());
  // The push is already settled, because another copy of it was answered before.
  if (it == running_->unsettled.end() || !it->second.contains(shard)) return {Next::kSettled, {}};
  if (AttemptRules::Settles(answer)) {
    it->second.erase(shard);
    if (it->second.empty()) running_->unsettled.erase(it);
    running_->v1 = std::max(running_->v1, map_.version);
    return {Next::kSettled, {}};
  }
  switch (answer) {
    case PushAnswer::kApplied:
    case PushAnswer::kDuplicate: break;  // settled above
    case PushAnswer::kStale:
      if (server_version > map_.version) return {Next::kWaitForMap, server_version};
      return {Next::kBackoff, {}};
    case PushAnswer::kBusy:
    case PushAnswer::kTransport: return {Next::kBackoff, {}};
    case PushAnswer::kSuperseded:
    case PushAnswer::kRefused: running_.reset(); return {Next::kDropAttempt, {}};
    case PushAnswer::kOverBudget:
      return {over_budget_ == OverBudget::kPause ? Next::kBackoff : Next::kFail, {}};
    case PushAnswer::kInvalid: return {Next::kFail, {}};
  }
  return {Next::kFail, {}};
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> AttemptBook::TouchedLess() const {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> less;
  if (!running_) return less;
  const std::vector<std::uint32_t>& touched = running_->touched;
  for (std::uint32_t p = 0; p < std::max(map_.shards.size(), touched.size()); ++p) {
    const std::uint32_t updates = p < touched.size() ? touched[p] : 0;
    if (updates < running_->updates) less.emplace_back(p, updates);
  }
  return less;
}

bool AttemptBook::MayFinish(bool all_declared) const {
  return running_ && all_declared && AttemptRules::MayReport(running_->unsettled);
}

DoneReport AttemptBook::Finish() {
  EG_CHECK(MayFinish(true));
  DoneReport report{std::move(running_->work), AttemptRules::V0(running_->v0, map_.version),
                    running_->v1};
  running_.reset();
  if (AttemptRules::KeepsDone()) unanswered_.push_back(report);
  return report;
}

bool AttemptBook::Drop(Attempt attempt) {
  if (running_ && running_->work.attempt == attempt) {
    running_.reset();
    return true;
  }
  return std::erase_if(queued_, [&](const Work& work) { return work.attempt == attempt; }) > 0;
}

void AttemptBook::DropJob(JobUid job) {
  std::erase_if(unanswered_, [&](const DoneReport& report) { return report.work.job == job; });
  if (running_ && running_->work.job == job) running_.reset();
  std::erase_if(queued_, [&](const Work& work) { return work.job == job; });
  if (map_.job == job || map_.job == JobUid{}) map_ = ShardMap{};
}

bool AttemptBook::Holds(Attempt attempt) const {
  const auto same = [&](const Work& work) { return work.attempt == attempt; };
  return (running_ && same(running_->work)) || std::any_of(queued_.begin(), queued_.end(), same) ||
         std::any_of(unanswered_.begin(), unanswered_.end(),
                     [&](const DoneReport& report) { return same(report.work); });
}

}  // namespace evergrad::worker

#include "coordinator/closures/closure_book.h"

#include <algorithm>

#include "coordinator/closures/closure_rules.h"

namespace evergrad::coordinator {
namespace {

// [19] Adds the changes by a Done of a current attempt that began under the map V0.
void AddDone(const DurableBook& book, ClosureId closure, const ClosureBook::Current& current,
             MapVersion v0, Record* record) {
  const DurableState& state = book.state();
  const std::uint64_t c = closure.value();
  if (!current.all_targets) {
    for (const ShardId p : current.targets) {
      if (!ClosureRules::RolledBackSince(state.map[p.value()].start, v0) &&
          state.todo[p.value()].Contains(c))
        record->todo_remove[p.value()].Add(c);
    }
    return;
  }
  record->succeeded_add.Add(c);
  if (!ClosureRules::RolledBackSince(book.newest_start(), v0)) return;
  for (std::uint32_t p = 0; p < state.map.size(); ++p) {
    if (ClosureRules::RolledBackSince(state.map[p].start, v0)) record->todo_add[p].Add(c);
  }
}

// [26] Returns whether the updates of the attempt are still needed at a shard.
bool IsNeeded(const DurableState& state, const ClosureBook::HeldAttempt& held) {
  const std::uint64_t c = held.closure.value();
  if (held.all_targets) return !state.succeeded.Contains(c) && !state.dead.Contains(c);
  return std::any_of(held.targets.begin(), held.targets.end(),
                     [&](ShardId p) { return state.todo[p.value()].Contains(c); });
}

}  // namespace

ClosureBook::ClosureBook(Options options, DurableState state)
    : options_(options),
      durable_(options.closures, options.shards, std::move(state)),
      closes_(options.shards) {
  for (std::uint32_t p = 0; p < options_.shards; ++p) {
    if (!durable().todo[p].empty()) with_todo_.insert(p);
  }
}

Record ClosureBook::BeginLife(Term term) {
  window_open_ = true;
  current_.clear();
  current_all_ = 0;
  requeued_.clear();
  next_new_ = 0;
  repair_hint_ = 0;
  closes_.BeginLife();
  return durable_.BeginLife(term);
}

void ClosureBook::Commit(const Record& record) {
  durable_.Commit(record);
  OnCommit(record);
}

void ClosureBook::OnCommit(const Record& record) {
  for (const auto& [p, set] : record.todo_add) {
    if (const auto first = set.First()) repair_hint_ = std::min(repair_hint_, *first);
    if (!durable().todo[p].empty()) with_todo_.insert(p);
  }
  for (const auto& [p, set] : record.todo_remove) {
    if (durable().todo[p].empty()) with_todo_.erase(p);
  }
}

ClosureBook::MapChange ClosureBook::PassOn(MapChange change) {
  OnCommit(change.record);
  if (const IntervalSet& dead = change.record.dead_add; !dead.empty()) {
    for (auto it = current_.begin(); it != current_.end();) {
      const auto here = it++;
      if (dead.Contains(here->first.value())) Forget(here);
    }
    std::erase_if(requeued_, [&](std::uint64_t c) { return dead.Contains(c); });
  }
  for (const AssignOrder& order : change.assigns) closes_.OnAssign(order);
  return change;
}

bool ClosureBook::IsForgotten(MapVersion v1) const {
  if (v1 == MapVersion{} || v1.term >= durable().term.value()) return false;
  const auto it = durable().known.find(v1.term);
  return ClosureRules::ForgottenMapIsVoid() && (it == durable().known.end() || v1.n > it->second);
}

void ClosureBook::Forget(CurrentIterator it) {
  repair_hint_ = std::min(repair_hint_, it->first.value());
  if (it->second.all_targets) --current_all_;
  current_.erase(it);
}

void ClosureBook::Release(CurrentIterator it) {
  const std::uint64_t c = it->first.value();
  if (it->second.all_targets && !durable().succeeded.Contains(c) && !durable().dead.Contains(c))
    requeued_.insert(c);
  Forget(it);
}

// ---------------------------------------------------------------- 23

std::optional<ClosureBook::Granted> ClosureBook::NextGrant(
    TaskId worker, bool grants_new, const std::function<bool(ClosureId)>& may) {
  if (window_open_) return std::nullopt;
  Granted granted;
  const auto passed_over = [&](std::uint64_t c) { return may && !may(ClosureId(c)); };
  bool all_granted = true;
  for (std::uint64_t from = repair_hint_; !with_todo_.empty();) {
    std::optional<std::uint64_t> first;
    for (const std::uint32_t p : with_todo_) {
      const auto c = durable().todo[p].FirstAtLeast(from);
      if (c && (!first || *c < *first)) first = c;
    }
    if (!first) break;
    from = *first + 1;
    const bool is_current = current_.contains(ClosureId(*first));
    // The hint stays below this closure.
    if (!is_current && passed_over(*first)) all_granted = false;
    if (all_granted) repair_hint_ = from;
    if (is_current || passed_over(*first)) continue;
    granted.closure = ClosureId(*first);
    granted.all_targets = false;
    granted.repair = true;
    for (const std::uint32_t p : with_todo_) {
      if (durable().todo[p].Contains(*first)) granted.targets.insert(ShardId(p));
    }
    break;
  }
  if (!granted.repair) {
    const auto requeued = std::find_if_not(requeued_.begin(), requeued_.end(), passed_over);
    if (requeued != requeued_.end()) {
      granted.closure = ClosureId(*requeued);
      requeued_.erase(requeued);
    } else {
      if (!grants_new || !ClosureRules::MayOpenOneMore(current_all_, options_.open_max))
        return std::nullopt;
      for (bool found = false; !found;) {
        for (std::uint64_t before = ~0ull; before != next_new_;) {
          before = next_new_;
          next_new_ = durable().dead.FirstMissing(durable().succeeded.FirstMissing(next_new_));
          if (current_.contains(ClosureId(next_new_))) ++next_new_;
        }
        if (next_new_ >= std::min(options_.closures, new_limit_)) {
          next_new_ = std::min(next_new_, options_.closures);
          return std::nullopt;
        }
        found = !passed_over(next_new_);
        granted.closure = ClosureId(next_new_++);
        if (!found) requeued_.insert(granted.closure.value());
      }
    }
    ++current_all_;
  }
  granted.attempt = NextAttempt();
  if (granted.repair) ++repairs_granted_;
  current_[granted.closure] =
      Current{granted.attempt, worker, granted.all_targets, granted.targets};
  return granted;
}

std::vector<ClosureId> ClosureBook::ReleaseWorker(TaskId worker) {
  std::vector<ClosureId> released;
  for (auto it = current_.begin(); it != current_.end();) {
    const auto here = it++;
    if (here->second.worker != worker) continue;
    released.push_back(here->first);
    Release(here);
  }
  return released;
}

void ClosureBook::ReleaseAttempt(ClosureId closure, Attempt attempt) {
  const auto it = current_.find(closure);
  if (it != current_.end() && it->second.attempt == attempt) Release(it);
}

// ---------------------------------------------------------------- 19, 20, 20b

ClosureBook::DoneResult ClosureBook::OnDone(ClosureId closure, Attempt attempt, MapVersion v0,
                                            MapVersion v1) {
  DoneResult result;
  if (window_open_) {
    result.deferred = true;
    return result;
  }
  const auto it = current_.find(closure);
  if (it == current_.end() || !ClosureRules::IsCurrent(attempt, it->second.attempt)) return result;
  const bool cancelled =
      ClosureRules::CancelEndsAttempt() && durable().dead.Contains(closure.value());
  if (cancelled || IsForgotten(v1)) {
    Release(it);
    return result;
  }
  result.acknowledged = true;
  result.counted = ClosureRules::CountsMetrics(it->second.all_targets);
  AddDone(durable_, closure, it->second, v0, &result.record);
  Forget(it);
  Commit(result.record);
  return result;
}

Record ClosureBook::Cancel(ClosureId closure) {
  Record record;
  const std::uint64_t c = closure.value();
  if (c >= options_.closures || durable().dead.Contains(c)) return record;
  if (ClosureRules::SuccessIsFinal() && durable().succeeded.Contains(c)) return record;
  record.dead_add.Add(c);
  if (const auto it = current_.find(closure);
      it != current_.end() && ClosureRules::CancelEndsAttempt())
    Forget(it);
  requeued_.erase(c);
  Commit(record);  // todo sets have only members of succeeded
  return record;
}

Record ClosureBook::Cancel(const IntervalSet& closures) {
  Record record;
  record.dead_add = durable_.NotEnded(closures);
  std::erase_if(requeued_, [&](std::uint64_t c) { return record.dead_add.Contains(c); });
  Commit(record);
  return record;
}

Record ClosureBook::FailRepair(ClosureId closure, Attempt attempt) {
  Record record;
  const auto it = current_.find(closure);
  if (it == current_.end() || it->second.attempt != attempt || it->second.all_targets)
    return record;
  for (const ShardId p : it->second.targets) {
    if (!durable().todo[p.value()].Contains(closure.value())) continue;
    record.todo_remove[p.value()].Add(closure.value());
    if (ClosureRules::FailedRepairIsLost()) record.lost_add[p.value()].Add(closure.value());
  }
  Forget(it);
  Commit(record);
  return record;
}

// ---------------------------------------------------------------- 25, 26

ClosureBook::ServerRegistration ClosureBook::RegisterServer(const std::string& server,
                                                            const std::vector<HeldShard>& held,
                                                            bool restore) {
  ServerRegistration result = durable_.RegisterServer(server, held, window_open_, restore);
  result.change = PassOn(std::move(result.change));
  return result;
}

std::vector<ClosureBook::HeldAttempt> ClosureBook::RegisterWorker(
    TaskId worker, const std::vector<HeldAttempt>& held) {
  std::vector<HeldAttempt> adopted;
  for (const HeldAttempt& h : held) {
    // [35] An unproved attempt would fence off the worker to which the attempt was granted.
    if (!h.proved) continue;
    if (h.closure.value() >= options_.closures || h.attempt.term > durable().term.value() ||
        IsForgotten(h.v1))
      continue;
    const bool in_plan = std::all_of(h.targets.begin(), h.targets.end(),
                                     [&](ShardId p) { return p.value() < options_.shards; });
    if (!h.all_targets && !in_plan) continue;
    if (!ClosureRules::MayAdoptAttempt(IsNeeded(durable(), h))) continue;
    if (const auto it = current_.find(h.closure); it != current_.end()) {
      if (ClosureRules::IsSuperseded(h.attempt, it->second.attempt)) continue;
      Forget(it);
    }
    requeued_.erase(h.closure.value());
    if (h.all_targets) ++current_all_;
    current_[h.closure] = Current{h.attempt, worker, h.all_targets, h.targets};
    adopted.push_back(h);
  }
  return adopted;
}

// ---------------------------------------------------------------- questions

bool ClosureBook::BarrierReached(std::uint64_t limit) const {
  if (window_open_ || current_all_ != 0 ||
      (ClosureRules::EvaluationAwaitsRepairs() && (!current().empty() || RepairsPending())))
    return false;
  return durable().succeeded.Union(durable().dead).FirstMissing(0) >=
         std::min(limit, options_.closures);
}

std::uint64_t ClosureBook::RepairsLeft() const {
  std::uint64_t left = 0;
  for (const std::uint32_t p : with_todo_) left += durable().todo[p].size();
  return left;
}

bool ClosureBook::Quiet() const {
  const DurableState& state = durable();
  return !window_open_ && current().empty() && !RepairsPending() &&
         state.succeeded.size() + state.dead.size() == options_.closures &&
         std::none_of(state.map.begin(), state.map.end(),
                      [](const ShardOwner& owner) { return owner.server.empty(); });
}

}  // namespace evergrad::coordinator

#include "coordinator/closures/attempt_table.h"

#include <algorithm>
#include <utility>

#include "coordinator/closures/closure_rules.h"

namespace evergrad::coordinator {
namespace {

bool Allows(const AttemptTable::Filter& may, std::uint64_t closure) {
  return !may || may(ClosureId(closure));
}

}  // namespace

AttemptTable::AttemptTable(std::uint64_t closures, std::uint32_t open_max,
                           const DurableState& state)
    : closures_(closures), open_max_(open_max) {
  for (std::uint32_t p = 0; p < state.todo.size(); ++p) {
    if (!state.todo[p].empty()) with_todo_.insert(p);
  }
}

void AttemptTable::BeginLife() {
  current_.clear();
  with_all_targets_ = 0;
  requeued_.clear();
  next_new_ = 0;
  repair_hint_ = 0;
}

void AttemptTable::OnCommit(const Record& record, const DurableState& state) {
  for (const auto& [p, set] : record.todo_add) {
    if (const auto first = set.First()) repair_hint_ = std::min(repair_hint_, *first);
    if (!state.todo[p].empty()) with_todo_.insert(p);
  }
  for (const auto& [p, set] : record.todo_remove) {
    if (state.todo[p].empty()) with_todo_.erase(p);
  }
}

// ---------------------------------------------------------------- LEDGER line 23

std::optional<AttemptTable::Granted> AttemptTable::ChooseNext(const DurableState& state,
                                                              bool grants_new, const Filter& may) {
  std::optional<Granted> granted = ChooseRepair(state, may);
  if (granted) return granted;
  std::optional<ClosureId> closure = TakeRequeued(may);
  if (!closure && grants_new && ClosureRules::MayOpenOneMore(with_all_targets_, open_max_))
    closure = TakeNew(state, may);
  if (closure) granted.emplace().closure = *closure;
  return granted;
}

std::optional<AttemptTable::Granted> AttemptTable::ChooseRepair(const DurableState& state,
                                                                const Filter& may) {
  std::optional<Granted> granted;
  bool all_current = true;  // whether each closure below `from` in a todo set has a current attempt
  for (std::uint64_t from = repair_hint_; !with_todo_.empty();) {
    std::optional<std::uint64_t> first;
    for (const std::uint32_t p : with_todo_) {
      const auto c = state.todo[p].FirstAtLeast(from);
      if (c && (!first || *c < *first)) first = c;
    }
    if (!first) break;
    from = *first + 1;
    const bool is_current = current_.contains(ClosureId(*first));
    const bool grants = !is_current && Allows(may, *first);
    // The chosen closure gets its current attempt in Begin().
    all_current = all_current && (is_current || grants);
    if (all_current) repair_hint_ = from;
    if (!grants) continue;
    granted = Granted{.closure = ClosureId(*first), .all_targets = false, .repair = true};
    for (const std::uint32_t p : with_todo_) {
      if (state.todo[p].Contains(*first)) granted->targets.insert(ShardId(p));
    }
    break;
  }
  return granted;
}

std::optional<ClosureId> AttemptTable::TakeRequeued(const Filter& may) {
  const auto it = std::find_if(requeued_.begin(), requeued_.end(),
                               [&](std::uint64_t c) { return Allows(may, c); });
  if (it == requeued_.end()) return std::nullopt;
  const ClosureId closure(*it);
  requeued_.erase(it);
  return closure;
}

std::optional<ClosureId> AttemptTable::TakeNew(const DurableState& state, const Filter& may) {
  for (;;) {
    for (std::uint64_t before = ~0ull; before != next_new_;) {
      before = next_new_;
      next_new_ = state.dead.FirstMissing(state.succeeded.FirstMissing(next_new_));
      if (current_.contains(ClosureId(next_new_))) ++next_new_;
    }
    if (next_new_ >= std::min(closures_, new_limit_)) {
      next_new_ = std::min(next_new_, closures_);
      return std::nullopt;
    }
    const std::uint64_t c = next_new_++;
    if (Allows(may, c)) return ClosureId(c);
    requeued_.insert(c);
  }
}

void AttemptTable::Begin(const Granted& granted, TaskId worker) {
  if (granted.repair) ++repairs_granted_;
  if (granted.all_targets) ++with_all_targets_;
  current_[granted.closure] =
      Current{granted.attempt, worker, granted.all_targets, granted.targets};
}

// ---------------------------------------------------------------- LEDGER line 26

bool AttemptTable::Adopt(ClosureId closure, Current adopted) {
  if (const auto it = current_.find(closure); it != current_.end()) {
    if (ClosureRules::IsSuperseded(adopted.attempt, it->second.attempt)) return false;
    Forget(it);
  }
  requeued_.erase(closure.value());
  if (adopted.all_targets) ++with_all_targets_;
  current_[closure] = std::move(adopted);
  return true;
}

// ---------------------------------------------------------------- the end of attempts

void AttemptTable::Forget(Map::const_iterator it) {
  repair_hint_ = std::min(repair_hint_, it->first.value());
  if (it->second.all_targets) --with_all_targets_;
  current_.erase(it);
}

void AttemptTable::Release(Map::const_iterator it, const DurableState& state) {
  const std::uint64_t c = it->first.value();
  if (it->second.all_targets && !state.succeeded.Contains(c) && !state.dead.Contains(c))
    requeued_.insert(c);
  Forget(it);
}

std::vector<ClosureId> AttemptTable::ReleaseWorker(TaskId worker, const DurableState& state) {
  std::vector<ClosureId> released;
  for (auto it = current_.cbegin(); it != current_.cend();) {
    const auto here = it++;
    if (here->second.worker != worker) continue;
    released.push_back(here->first);
    Release(here, state);
  }
  return released;
}

void AttemptTable::Unqueue(const IntervalSet& closures) {
  std::erase_if(requeued_, [&](std::uint64_t c) { return closures.Contains(c); });
}

void AttemptTable::Forget(const IntervalSet& closures) {
  if (closures.empty()) return;
  for (auto it = current_.cbegin(); it != current_.cend();) {
    const auto here = it++;
    if (closures.Contains(here->first.value())) Forget(here);
  }
  Unqueue(closures);
}

std::uint64_t AttemptTable::RepairsLeft(const DurableState& state) const {
  std::uint64_t left = 0;
  for (const std::uint32_t p : with_todo_) left += state.todo[p].size();
  return left;
}

}  // namespace evergrad::coordinator

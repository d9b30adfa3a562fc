#include "coordinator/closures/closure_book.h"

#include <algorithm>

#include "coordinator/closures/closure_rules.h"

namespace evergrad::coordinator {
namespace {

// Adds to `record` the changes that follow from the Done of a current attempt (LEDGER line 19). V0
// is the version of the map with which the attempt began.
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

// Returns whether the updates of the attempt are still needed at a shard (LEDGER line 26).
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
      attempts_(options.closures, options.open_max, durable()),
      closes_(options.shards) {}

Record ClosureBook::BeginLife(Term term) {
  window_open_ = true;
  attempts_.BeginLife();
  closes_.BeginLife();
  return durable_.BeginLife(term);
}

void ClosureBook::Commit(const Record& record) {
  durable_.Commit(record);
  attempts_.OnCommit(record, durable());
}

ClosureBook::MapChange ClosureBook::PassOn(MapChange change) {
  attempts_.OnCommit(change.record, durable());
  attempts_.Forget(change.record.dead_add);
  for (const AssignOrder& order : change.assigns) closes_.OnAssign(order);
  return change;
}

bool ClosureBook::IsForgotten(MapVersion v1) const {
  if (v1 == MapVersion{} || v1.term >= durable().term.value()) return false;
  const auto it = durable().known.find(v1.term);
  return ClosureRules::ForgottenMapIsVoid() && (it == durable().known.end() || v1.n > it->second);
}

// ---------------------------------------------------------------- LEDGER line 23

std::optional<ClosureBook::Granted> ClosureBook::NextGrant(TaskId worker, bool grants_new,
                                                           const AttemptTable::Filter& may) {
  if (window_open_) return std::nullopt;
  std::optional<Granted> granted = attempts_.ChooseNext(durable(), grants_new, may);
  if (!granted) return granted;
  granted->attempt = NextAttempt();
  attempts_.Begin(*granted, worker);
  return granted;
}

void ClosureBook::ReleaseAttempt(ClosureId closure, Attempt attempt) {
  const auto it = current().find(closure);
  if (it != current().end() && it->second.attempt == attempt) attempts_.Release(it, durable());
}

// ---------------------------------------------------------------- LEDGER lines 19, 20 and 20b

ClosureBook::DoneResult ClosureBook::OnDone(ClosureId closure, Attempt attempt, MapVersion v0,
                                            MapVersion v1) {
  DoneResult result;
  if (window_open_) {
    result.deferred = true;
    return result;
  }
  const auto it = current().find(closure);
  if (it == current().end() || !ClosureRules::IsCurrent(attempt, it->second.attempt)) return result;
  const bool cancelled =
      ClosureRules::CancelEndsAttempt() && durable().dead.Contains(closure.value());
  if (cancelled || IsForgotten(v1)) {
    attempts_.Release(it, durable());
    return result;
  }
  result.acknowledged = true;
  result.counted = ClosureRules::CountsMetrics(it->second.all_targets);
  AddDone(durable_, closure, it->second, v0, &result.record);
  attempts_.Forget(it);
  Commit(result.record);
  return result;
}

Record ClosureBook::Cancel(ClosureId closure) {
  Record record;
  const std::uint64_t c = closure.value();
  if (c >= options_.closures || durable().dead.Contains(c)) return record;
  if (ClosureRules::SuccessIsFinal() && durable().succeeded.Contains(c)) return record;
  record.dead_add.Add(c);
  if (const auto it = current().find(closure);
      it != current().end() && ClosureRules::CancelEndsAttempt())
    attempts_.Forget(it);
  attempts_.Unqueue(record.dead_add);
  // no todo set changes, because todo sets contain only closures that have succeeded
  Commit(record);
  return record;
}

Record ClosureBook::Cancel(const IntervalSet& closures) {
  Record record;
  record.dead_add = durable_.NotEnded(closures);
  if (!record.empty()) attempts_.Unqueue(record.dead_add);
  Commit(record);
  return record;
}

Record ClosureBook::FailRepair(ClosureId closure, Attempt attempt) {
  Record record;
  const auto it = current().find(closure);
  if (it == current().end() || it->second.attempt != attempt || it->second.all_targets)
    return record;
  for (const ShardId p : it->second.targets) {
    if (!durable().todo[p.value()].Contains(closure.value())) continue;
    record.todo_remove[p.value()].Add(closure.value());
    if (ClosureRules::FailedRepairIsLost()) record.lost_add[p.value()].Add(closure.value());
  }
  attempts_.Forget(it);
  Commit(record);
  return record;
}

// ---------------------------------------------------------------- LEDGER lines 25 and 26

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
    // If a worker could claim an attempt without proof, it could take the attempt away from the
    // worker to which the attempt was granted (LEDGER line 35).
    if (!h.proved) continue;
    if (h.closure.value() >= options_.closures || h.attempt.term > durable().term.value() ||
        IsForgotten(h.v1))
      continue;
    const bool in_plan = std::all_of(h.targets.begin(), h.targets.end(),
                                     [&](ShardId p) { return p.value() < options_.shards; });
    if (!h.all_targets && !in_plan) continue;
    if (!ClosureRules::MayAdoptAttempt(IsNeeded(durable(), h))) continue;
    if (attempts_.Adopt(h.closure, {h.attempt, worker, h.all_targets, h.targets}))
      adopted.push_back(h);
  }
  return adopted;
}

// ---------------------------------------------------------------- questions

bool ClosureBook::BarrierReached(std::uint64_t limit) const {
  if (window_open_ || attempts_.with_all_targets() != 0 ||
      (ClosureRules::EvaluationAwaitsRepairs() && (!current().empty() || RepairsPending())))
    return false;
  return durable().succeeded.Union(durable().dead).FirstMissing(0) >=
         std::min(limit, options_.closures);
}

bool ClosureBook::Quiet() const {
  const DurableState& state = durable();
  return !window_open_ && current().empty() && !RepairsPending() &&
         state.succeeded.size() + state.dead.size() == options_.closures &&
         std::none_of(state.map.begin(), state.map.end(),
                      [](const ShardOwner& owner) { return owner.server.empty(); });
}

}  // namespace evergrad::coordinator

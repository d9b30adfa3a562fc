#include "coordinator/closures/closure_book.h"

#include <algorithm>

#include "common/base/check.h"
#include "coordinator/closures/closure_rules.h"

namespace evergrad::coordinator {

ClosureBook::ClosureBook(Options options, DurableState state)
    : options_(options), state_(std::move(state)) {
  EG_CHECK(state_.map.size() <= options_.shards && state_.todo.size() <= options_.shards &&
           state_.lost.size() <= options_.shards && state_.snapshots.size() <= options_.shards);
  state_.Resize(options_.shards);
  refusing_.resize(options_.shards);
  for (std::uint32_t p = 0; p < options_.shards; ++p) {
    if (!state_.todo[p].empty()) with_todo_.insert(p);
    newest_start_ = std::max(newest_start_, state_.map[p].start);
  }
}

Record ClosureBook::BeginLife(Term term) {
  EG_CHECK(term > state_.term);
  window_open_ = true;
  n_ = 0;
  current_.clear();
  current_all_ = 0;
  requeued_.clear();
  next_new_ = 0;
  repair_hint_ = 0;
  sent_closes_.clear();
  std::fill(refusing_.begin(), refusing_.end(), Refusing{});
  Record record, all;
  record.term = term;
  record.version = MapVersion{term.value(), ++n_};
  Commit(record, &all);
  return all;
}

void ClosureBook::Commit(const Record& record, Record* all) {
  ApplyRecord(record, &state_);
  for (const auto& [p, set] : record.todo_add) {
    if (const auto first = set.First()) repair_hint_ = std::min(repair_hint_, *first);
    if (!state_.todo[p].empty()) with_todo_.insert(p);
  }
  for (const auto& [p, set] : record.todo_remove) {
    if (state_.todo[p].empty()) with_todo_.erase(p);
  }
  for (const auto& [p, owner] : record.map) newest_start_ = std::max(newest_start_, owner.start);
  ++revision_;
  AppendRecord(record, all);
}

IntervalSet ClosureBook::DoneFor(std::uint32_t shard) const {
  return ClosureRules::DoneAt(state_.succeeded, state_.todo[shard], state_.lost[shard]);
}

Record ClosureBook::TodoBecomes(std::uint32_t shard, IntervalSet wanted,
                                const IntervalSet& refused) const {
  Record record;
  // A closure that the state refuses can never be applied to it. The journal has lost the record of
  // [20] or [20b] that caused the refusal.
  IntervalSet lost = wanted.Intersect(refused);
  wanted.Subtract(lost);
  IntervalSet add = wanted.Minus(state_.todo[shard]);
  IntervalSet remove = state_.todo[shard].Minus(wanted);
  if (!add.empty()) record.todo_add[shard] = std::move(add);
  if (!remove.empty()) record.todo_remove[shard] = std::move(remove);
  if (!lost.empty()) record.lost_add[shard] = std::move(lost);
  return record;
}

bool ClosureBook::Unknown(MapVersion v1) const {
  if (v1 == MapVersion{} || v1.term >= state_.term.value()) return false;
  const auto it = state_.known.find(v1.term);
  return ClosureRules::ForgottenMapIsVoid() && (it == state_.known.end() || v1.n > it->second);
}

void ClosureBook::Forget(CurrentIterator it) {
  repair_hint_ = std::min(repair_hint_, it->first.value());
  if (it->second.all_targets) --current_all_;
  current_.erase(it);
}

void ClosureBook::Release(CurrentIterator it) {
  const std::uint64_t c = it->first.value();
  if (it->second.all_targets && !state_.succeeded.Contains(c) && !state_.dead.Contains(c))
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
      const auto c = state_.todo[p].FirstAtLeast(from);
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
      if (state_.todo[p].Contains(*first)) granted.targets.insert(ShardId(p));
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
          next_new_ = state_.dead.FirstMissing(state_.succeeded.FirstMissing(next_new_));
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
  ++granted_attempts_;
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
  const std::uint64_t c = closure.value();
  if ((ClosureRules::CancelEndsAttempt() && state_.dead.Contains(c)) || Unknown(v1)) {
    Release(it);
    return result;
  }
  Record record;
  if (it->second.all_targets) {
    record.succeeded_add.Add(c);
    if (ClosureRules::RolledBackSince(newest_start_, v0)) {
      for (std::uint32_t p = 0; p < options_.shards; ++p) {
        if (ClosureRules::RolledBackSince(state_.map[p].start, v0)) record.todo_add[p].Add(c);
      }
    }
  } else {
    for (const ShardId p : it->second.targets) {
      if (!ClosureRules::RolledBackSince(state_.map[p.value()].start, v0) &&
          state_.todo[p.value()].Contains(c))
        record.todo_remove[p.value()].Add(c);
    }
  }
  result.counted = ClosureRules::CountsMetrics(it->second.all_targets);
  Forget(it);
  result.acknowledged = true;
  if (!record.empty()) Commit(record, &result.record);
  return result;
}

Record ClosureBook::Cancel(ClosureId closure) {
  Record all;
  const std::uint64_t c = closure.value();
  if (c >= options_.closures || state_.dead.Contains(c)) return all;
  if (ClosureRules::SuccessIsFinal() && state_.succeeded.Contains(c)) return all;
  Record record;
  record.dead_add.Add(c);
  if (const auto it = current_.find(closure);
      it != current_.end() && ClosureRules::CancelEndsAttempt())
    Forget(it);
  requeued_.erase(c);
  Commit(record, &all);  // todo sets have only members of succeeded
  return all;
}

Record ClosureBook::Cancel(const IntervalSet& closures) {
  Record all, record;
  record.dead_add = closures.Intersect(IntervalSet::Range(0, options_.closures))
                        .Minus(state_.succeeded)
                        .Minus(state_.dead);
  if (record.dead_add.empty()) return all;
  std::erase_if(requeued_, [&](std::uint64_t c) { return record.dead_add.Contains(c); });
  Commit(record, &all);
  return all;
}

bool ClosureBook::RefusedEverywhere(ClosureId closure) const {
  return RefusedEverywhere(IntervalSet{closure.value()});
}

bool ClosureBook::RefusedEverywhere(const IntervalSet& closures) const {
  if (!ClosureRules::CancelAwaitsOwners()) return true;
  for (std::uint32_t p = 0; p < options_.shards; ++p) {
    if (state_.map[p].server.empty()) continue;
    if (refusing_[p].epoch != state_.map[p].epoch || !refusing_[p].refused.ContainsAll(closures))
      return false;
  }
  return true;
}

Record ClosureBook::FailRepair(ClosureId closure, Attempt attempt) {
  Record all;
  const auto it = current_.find(closure);
  if (it == current_.end() || it->second.attempt != attempt || it->second.all_targets) return all;
  Record record;
  for (const ShardId p : it->second.targets) {
    if (!state_.todo[p.value()].Contains(closure.value())) continue;
    record.todo_remove[p.value()].Add(closure.value());
    if (ClosureRules::FailedRepairIsLost()) record.lost_add[p.value()].Add(closure.value());
  }
  Forget(it);
  if (!record.empty()) Commit(record, &all);
  return all;
}

// ---------------------------------------------------------------- 21, 22, 20a

void ClosureBook::MarkUnknownDead(const IntervalSet& refused, Record* all) {
  Record record;
  record.dead_add = refused.Intersect(IntervalSet::Range(0, options_.closures))
                        .Minus(state_.succeeded)
                        .Minus(state_.dead);
  if (record.dead_add.empty()) return;
  for (auto it = current_.begin(); it != current_.end();) {
    const auto here = it++;
    if (record.dead_add.Contains(here->first.value())) Forget(here);
  }
  std::erase_if(requeued_, [&](std::uint64_t c) { return record.dead_add.Contains(c); });
  Commit(record, all);
}

ClosureBook::MapChange ClosureBook::Rollback(ShardId shard, const std::string& server) {
  EG_CHECK(shard.value() < options_.shards);
  const Snapshot* newest = NewestSnapshot(shard);
  static const IntervalSet kNothing;
  return RollBack(shard, server, newest == nullptr ? kNothing : newest->done,
                  newest == nullptr ? kNothing : newest->refused, newest);
}

ClosureBook::MapChange ClosureBook::RollbackTo(ShardId shard, const std::string& server,
                                               const IntervalSet& snapshot_done,
                                               const IntervalSet& snapshot_refused) {
  EG_CHECK(shard.value() < options_.shards);
  return RollBack(shard, server, snapshot_done, snapshot_refused, nullptr);
}

ClosureBook::MapChange ClosureBook::RollBack(ShardId shard, const std::string& server,
                                             const IntervalSet& snapshot_done,
                                             const IntervalSet& snapshot_refused,
                                             const Snapshot* snapshot) {
  const std::uint32_t p = shard.value();
  MapChange change;
  MarkUnknownDead(snapshot_refused, &change.record);
  Record record = TodoBecomes(
      p, ClosureRules::TodoAfterRollback(state_.succeeded, snapshot_done, state_.lost[p]),
      snapshot_refused);
  const MapVersion version = NextVersion();
  const ShardOwner owner = ClosureRules::RolledBack(state_.map[p], server,
                                                    ShardEpoch{state_.term.value(), ++n_}, version);
  record.version = version;
  record.map[p] = owner;
  Commit(record, &change.record);
  change.map_changed = true;
  AssignOrder order{shard, server, owner.epoch, owner.start, version, {}, std::nullopt};
  if (ClosureRules::AssignCarriesRefused()) order.refused = state_.RefusedAt(p);
  if (snapshot != nullptr) order.snapshot = *snapshot;
  refusing_[p] = {owner.epoch, order.refused.Union(snapshot_refused)};
  change.assigns.push_back(std::move(order));
  return change;
}

// ---------------------------------------------------------------- 27, 28

Record ClosureBook::AddSnapshot(ShardId shard, Snapshot snapshot) {
  const std::uint32_t p = shard.value();
  EG_CHECK(p < options_.shards);
  Record record, all;
  // The present owner may have a newer file, and a sweep may already have deleted this one.
  if (!ClosureRules::IsOfOwner(snapshot.epoch, state_.map[p].epoch)) return all;
  const std::string uri = snapshot.Uri();
  for (const Snapshot& known : state_.snapshots[p]) {
    if (known.Uri() != uri) continue;
    if (known.sha256 == snapshot.sha256 && known.bytes == snapshot.bytes) return all;
    // The file had been deleted and was written anew. The state is the same, but the number of an
    // attempt, and with it the hash, may have changed.
    record.snapshot_remove[p].insert(uri);
  }
  record.snapshot_add[p].push_back(std::move(snapshot));
  Commit(record, &all);
  return all;
}

Record ClosureBook::RemoveSnapshots(ShardId shard, const std::set<std::string>& uris) {
  const std::uint32_t p = shard.value();
  EG_CHECK(p < options_.shards);
  Record record, all;
  for (const Snapshot& known : state_.snapshots[p]) {
    if (uris.contains(known.Uri())) record.snapshot_remove[p].insert(known.Uri());
  }
  if (!record.empty()) Commit(record, &all);
  return all;
}

const Snapshot* ClosureBook::NewestSnapshot(ShardId shard) const {
  const std::vector<Snapshot>& known = state_.snapshots[shard.value()];
  return known.empty() ? nullptr : &known.back();
}

Record ClosureBook::ResumeFrom(std::vector<Snapshot> snapshots) {
  EG_CHECK(snapshots.size() == options_.shards && state_.succeeded.empty() && state_.dead.empty());
  const IntervalSet plan = IntervalSet::Range(0, options_.closures);
  IntervalSet done = plan, refused;
  for (std::uint32_t p = 0; p < options_.shards; ++p) {
    EG_CHECK(state_.map[p] == ShardOwner{});
    done = done.Intersect(snapshots[p].done);
    refused.UnionWith(snapshots[p].refused.Intersect(plan));
  }
  Record record, all;
  // A closure that one shard refuses and that all have done is applied everywhere.
  refused.Subtract(done);
  record.succeeded_add = std::move(done);
  record.dead_add = std::move(refused);
  for (std::uint32_t p = 0; p < options_.shards; ++p)
    record.snapshot_add[p].push_back(std::move(snapshots[p]));
  Commit(record, &all);
  return all;
}

std::vector<ShardId> ClosureBook::ShardsOf(const std::string& server) const {
  std::vector<ShardId> shards;
  for (std::uint32_t p = 0; p < options_.shards; ++p) {
    if (state_.map[p].server == server) shards.push_back(ShardId(p));
  }
  return shards;
}

ClosureBook::MapChange ClosureBook::Move(ShardId shard, ShardEpoch from,
                                         const std::string& server) {
  const std::uint32_t p = shard.value();
  EG_CHECK(p < options_.shards);
  MapChange change;
  if (state_.map[p].epoch != from) return change;
  const ShardEpoch epoch{state_.term.value(), ++n_};
  Record record;
  record.version = NextVersion();
  const ShardOwner owner = ClosureRules::Moved(state_.map[p], server, epoch, *record.version);
  record.map[p] = owner;
  Commit(record, &change.record);
  change.map_changed = true;
  change.assigns.push_back(
      {shard, server, owner.epoch, owner.start, state_.version, state_.RefusedAt(p), std::nullopt});
  refusing_[p] = {owner.epoch, change.assigns.back().refused};
  return change;
}

ClosureBook::MapChange ClosureBook::Unmap(ShardId shard) {
  const std::uint32_t p = shard.value();
  EG_CHECK(p < options_.shards);
  MapChange change;
  if (state_.map[p].server.empty()) return change;
  Record record;
  record.version = NextVersion();
  record.map[p] = ShardOwner{"", state_.map[p].epoch, state_.map[p].start};
  Commit(record, &change.record);
  change.map_changed = true;
  return change;
}

// ---------------------------------------------------------------- 25, 26

ClosureBook::ServerRegistration ClosureBook::RegisterServer(const std::string& server,
                                                            const std::vector<HeldShard>& held,
                                                            bool restore) {
  ServerRegistration result;
  MapChange& change = result.change;
  std::set<std::uint32_t> exact;
  for (const HeldShard& h : held) {
    const std::uint32_t p = h.shard.value();
    if (p >= options_.shards) {
      change.drops.emplace_back(h.shard, h.epoch);
      continue;
    }
    if (ClosureRules::UnknownRefusedIsDead()) MarkUnknownDead(h.refused, &change.record);
    const ShardOwner& owner = state_.map[p];
    const bool void_copy = ClosureRules::IsVoidCopy(h.stopped_in, state_.term);
    if (!void_copy && owner.server == server && owner.epoch == h.epoch) {
      exact.insert(p);
      if (const Record record = TodoBecomes(p, state_.todo[p], h.refused); !record.empty())
        Commit(record, &change.record);
    } else if (ClosureRules::MayAdopt(window_open_, h.loading) && !void_copy &&
               h.epoch > owner.epoch && ClosureRules::IsOfLastLife(h.epoch, state_.term)) {
      exact.insert(p);
      Record record = TodoBecomes(
          p,
          ClosureRules::TodoAfterAdoption(state_.todo[p], state_.succeeded, h.done, state_.lost[p]),
          h.refused);
      record.version = NextVersion();
      if (!owner.server.empty()) change.former.push_back({owner.server, {h.shard, owner.epoch}});
      record.map[p] = ShardOwner{server, h.epoch, h.start};
      Commit(record, &change.record);
      change.map_changed = true;
    } else {
      change.drops.emplace_back(h.shard, h.epoch);
    }
  }
  for (const ShardId shard : ShardsOf(server)) {
    if (exact.contains(shard.value())) continue;
    if (!restore) {
      result.unheld.push_back(shard);
      continue;
    }
    MapChange rolled = Rollback(shard, server);
    AppendRecord(rolled.record, &change.record);
    change.map_changed = true;
    change.assigns.push_back(std::move(rolled.assigns.front()));
  }
  return result;
}

std::vector<ClosureBook::HeldAttempt> ClosureBook::RegisterWorker(
    TaskId worker, const std::vector<HeldAttempt>& held) {
  std::vector<HeldAttempt> adopted;
  for (const HeldAttempt& h : held) {
    const std::uint64_t c = h.closure.value();
    // [35] An unproved attempt would fence off the worker to which the attempt was granted.
    if (!h.proved) continue;
    if (c >= options_.closures || h.attempt.term > state_.term.value() || Unknown(h.v1)) continue;
    bool needed = !state_.succeeded.Contains(c) && !state_.dead.Contains(c);
    if (!h.all_targets) {
      const auto in_plan = [&](ShardId p) { return p.value() < options_.shards; };
      if (!std::all_of(h.targets.begin(), h.targets.end(), in_plan)) continue;
      needed = std::any_of(h.targets.begin(), h.targets.end(),
                           [&](ShardId p) { return state_.todo[p.value()].Contains(c); });
    }
    if (!ClosureRules::MayAdoptAttempt(needed)) continue;
    if (const auto it = current_.find(h.closure); it != current_.end()) {
      if (ClosureRules::IsSuperseded(h.attempt, it->second.attempt)) continue;
      Forget(it);
    }
    requeued_.erase(c);
    if (h.all_targets) ++current_all_;
    current_[h.closure] = Current{h.attempt, worker, h.all_targets, h.targets};
    adopted.push_back(h);
  }
  return adopted;
}

// ---------------------------------------------------------------- 24

std::vector<ClosureBook::CloseOrder> ClosureBook::MakeCloses(TaskId server_session,
                                                             const std::string& server) {
  std::vector<CloseOrder> closes;
  for (std::uint32_t p = 0; p < options_.shards; ++p) {
    const ShardOwner& owner = state_.map[p];
    if (owner.server != server) continue;
    SentClose& sent = sent_closes_[{server_session, p}];
    if (sent.epoch != owner.epoch) {
      sent = SentClose{};
      sent.epoch = owner.epoch;
    }
    if (sent.pending || (sent.revision == revision_ && !sent.whole_next)) continue;
    IntervalSet done = DoneFor(p), refused = state_.RefusedAt(p);
    CloseOrder order{ShardId(p), owner.epoch, state_.version, {}, {}, sent.whole_next};
    order.done = sent.whole_next ? done : done.Minus(sent.done);
    order.refused = sent.whole_next ? refused : refused.Minus(sent.refused);
    sent.revision = revision_;
    if (order.done.empty() && order.refused.empty()) continue;
    sent.done = std::move(done);
    sent.refused = std::move(refused);
    sent.whole_next = false;
    sent.pending = true;
    closes.push_back(std::move(order));
  }
  return closes;
}

void ClosureBook::OnClosed(TaskId server_session, ShardId shard, ShardEpoch epoch, bool taken) {
  const auto it = sent_closes_.find({server_session, shard.value()});
  if (it == sent_closes_.end() || it->second.epoch != epoch || !it->second.pending) return;
  it->second.pending = false;
  if (!taken) {
    it->second.whole_next = ClosureRules::WholeAfterIgnored();
    return;
  }
  if (state_.map[shard.value()].epoch == epoch)
    refusing_[shard.value()] = {epoch, it->second.refused};
}

void ClosureBook::EndServerSession(TaskId server_session) {
  sent_closes_.erase(sent_closes_.lower_bound({server_session, 0}),
                     sent_closes_.upper_bound({server_session, ~0u}));
}

bool ClosureBook::ClosesSettled() const {
  // This code runs with each answer, so it must not allocate for each shard.
  std::vector<bool> settled(options_.shards);
  for (const auto& [key, sent] : sent_closes_) {
    const std::uint32_t p = key.second;
    if (sent.epoch == state_.map[p].epoch && !sent.pending && !sent.whole_next &&
        sent.revision == revision_)
      settled[p] = true;
  }
  for (std::uint32_t p = 0; p < options_.shards; ++p) {
    if (!settled[p] && !(DoneFor(p).empty() && state_.RefusedAt(p).empty())) return false;
  }
  return true;
}

// ---------------------------------------------------------------- questions

bool ClosureBook::AllEnded() const {
  return state_.succeeded.size() + state_.dead.size() == options_.closures;
}

bool ClosureBook::BarrierReached(std::uint64_t limit) const {
  if (window_open_ || current_all_ != 0 ||
      (ClosureRules::EvaluationAwaitsRepairs() && (!current_.empty() || RepairsPending())))
    return false;
  return state_.succeeded.Union(state_.dead).FirstMissing(0) >= std::min(limit, options_.closures);
}

std::uint64_t ClosureBook::RepairsLeft() const {
  std::uint64_t left = 0;
  for (const std::uint32_t p : with_todo_) left += state_.todo[p].size();
  return left;
}

bool ClosureBook::Quiet() const {
  return !window_open_ && current_.empty() && with_todo_.empty() && AllEnded() &&
         std::none_of(state_.map.begin(), state_.map.end(),
                      [](const ShardOwner& owner) { return owner.server.empty(); });
}

}  // namespace evergrad::coordinator

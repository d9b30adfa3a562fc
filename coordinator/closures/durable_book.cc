#include "coordinator/closures/durable_book.h"

#include <algorithm>

#include "common/base/check.h"
#include "coordinator/closures/closure_rules.h"

namespace evergrad::coordinator {

DurableBook::DurableBook(std::uint64_t closures, std::uint32_t shards, DurableState state)
    : plan_(IntervalSet::Range(0, closures)), shards_(shards), state_(std::move(state)) {
  EG_CHECK(state_.map.size() <= shards && state_.todo.size() <= shards &&
           state_.lost.size() <= shards && state_.snapshots.size() <= shards);
  state_.Resize(shards);
  for (const ShardOwner& owner : state_.map) newest_start_ = std::max(newest_start_, owner.start);
}

Record DurableBook::BeginLife(Term term) {
  EG_CHECK(term > state_.term);
  n_ = 0;
  Record record;
  record.term = term;
  record.version = MapVersion{term.value(), ++n_};
  Commit(record);
  return record;
}

void DurableBook::Commit(const Record& record) {
  if (record.empty()) return;
  ApplyRecord(record, &state_);
  for (const auto& [p, owner] : record.map) newest_start_ = std::max(newest_start_, owner.start);
  ++revision_;
}

void DurableBook::Commit(const Record& record, Record* all) {
  Commit(record);
  AppendRecord(record, all);
}

std::uint32_t DurableBook::IndexOf(ShardId shard) const {
  EG_CHECK(shard.value() < shards_);
  return shard.value();
}

IntervalSet DurableBook::NotEnded(const IntervalSet& closures) const {
  return closures.Intersect(plan_).Minus(state_.succeeded).Minus(state_.dead);
}

// ---------------------------------------------------------------- LEDGER lines 20a, 21 and 22

Record DurableBook::TodoBecomes(std::uint32_t p, IntervalSet wanted,
                                const IntervalSet& refused) const {
  Record record;
  // The shard refuses these closures, so it can never apply them. The journal has lost the records
  // of LEDGER line 20 or 20b that caused the refusal.
  IntervalSet lost = wanted.Intersect(refused);
  wanted.Subtract(lost);
  IntervalSet add = wanted.Minus(state_.todo[p]);
  IntervalSet remove = state_.todo[p].Minus(wanted);
  if (!add.empty()) record.todo_add[p] = std::move(add);
  if (!remove.empty()) record.todo_remove[p] = std::move(remove);
  if (!lost.empty()) record.lost_add[p] = std::move(lost);
  return record;
}

void DurableBook::MarkUnknownDead(const IntervalSet& refused, Record* all) {
  Record record;
  record.dead_add = NotEnded(refused);
  Commit(record, all);
}

DurableBook::MapChange DurableBook::Rollback(ShardId shard, const std::string& server) {
  return RollbackTo(shard, server, NewestSnapshot(shard));
}

DurableBook::MapChange DurableBook::RollbackTo(ShardId shard, const std::string& server,
                                               const Snapshot* snapshot) {
  static const Snapshot kSeed;
  const Snapshot& file = snapshot == nullptr ? kSeed : *snapshot;
  const std::uint32_t p = IndexOf(shard);
  MapChange change;
  MarkUnknownDead(file.refused, &change.record);
  Record record =
      TodoBecomes(p, ClosureRules::TodoAfterRollback(state_.succeeded, file.done, state_.lost[p]),
                  file.refused);
  const MapVersion version = Next<MapVersion>();
  const ShardOwner owner =
      ClosureRules::RolledBack(state_.map[p], server, Next<ShardEpoch>(), version);
  record.version = version;
  record.map[p] = owner;
  Commit(record, &change.record);
  change.map_changed = true;
  AssignOrder order{shard, server, owner.epoch, owner.start, version, {}, std::nullopt};
  if (ClosureRules::AssignCarriesRefused()) order.refused = state_.RefusedAt(p);
  if (snapshot != nullptr) order.snapshot = *snapshot;
  change.assigns.push_back(std::move(order));
  return change;
}

DurableBook::MapChange DurableBook::Move(ShardId shard, ShardEpoch from,
                                         const std::string& server) {
  const std::uint32_t p = IndexOf(shard);
  MapChange change;
  if (state_.map[p].epoch != from) return change;
  const ShardEpoch epoch = Next<ShardEpoch>();
  const MapVersion version = Next<MapVersion>();
  const ShardOwner owner = ClosureRules::Moved(state_.map[p], server, epoch, version);
  change.record.version = version;
  change.record.map[p] = owner;
  Commit(change.record);
  change.map_changed = true;
  change.assigns.push_back(
      {shard, server, owner.epoch, owner.start, version, state_.RefusedAt(p), std::nullopt});
  return change;
}

DurableBook::MapChange DurableBook::Unmap(ShardId shard) {
  const std::uint32_t p = IndexOf(shard);
  MapChange change;
  if (state_.map[p].server.empty()) return change;
  change.record.version = Next<MapVersion>();
  change.record.map[p] = ShardOwner{"", state_.map[p].epoch, state_.map[p].start};
  Commit(change.record);
  change.map_changed = true;
  return change;
}

std::vector<ShardId> DurableBook::ShardsOf(const std::string& server) const {
  std::vector<ShardId> shards;
  for (std::uint32_t p = 0; p < shards_; ++p) {
    if (state_.map[p].server == server) shards.emplace_back(p);
  }
  return shards;
}

// ---------------------------------------------------------------- LEDGER line 25

bool DurableBook::KeepOrAdopt(const std::string& server, const HeldShard& held, bool window_open,
                              MapChange* change) {
  const std::uint32_t p = held.shard.value();
  if (p >= shards_) return false;
  if (ClosureRules::UnknownRefusedIsDead()) MarkUnknownDead(held.refused, &change->record);
  if (ClosureRules::IsVoidCopy(held.stopped_in, state_.term)) return false;
  const ShardOwner& owner = state_.map[p];
  if (owner.server == server && owner.epoch == held.epoch) {
    Commit(TodoBecomes(p, state_.todo[p], held.refused), &change->record);
    return true;
  }
  if (!ClosureRules::MayAdopt(window_open, held.loading) || held.epoch <= owner.epoch ||
      !ClosureRules::IsOfLastLife(held.epoch, state_.term))
    return false;
  Record record = TodoBecomes(
      p,
      ClosureRules::TodoAfterAdoption(state_.todo[p], state_.succeeded, held.done, state_.lost[p]),
      held.refused);
  record.version = Next<MapVersion>();
  record.map[p] = ShardOwner{server, held.epoch, held.start};
  if (!owner.server.empty()) change->former.push_back({owner.server, {held.shard, owner.epoch}});
  Commit(record, &change->record);
  change->map_changed = true;
  return true;
}

DurableBook::ServerRegistration DurableBook::RegisterServer(const std::string& server,
                                                            const std::vector<HeldShard>& held,
                                                            bool window_open, bool restore) {
  ServerRegistration result;
  MapChange& change = result.change;
  std::set<ShardId> kept;
  for (const HeldShard& h : held) {
    if (KeepOrAdopt(server, h, window_open, &change))
      kept.insert(h.shard);
    else
      change.drops.emplace_back(h.shard, h.epoch);
  }
  for (const ShardId shard : ShardsOf(server)) {
    if (kept.contains(shard)) continue;
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

// ---------------------------------------------------------------- LEDGER lines 27 and 28

Record DurableBook::AddSnapshot(ShardId shard, Snapshot snapshot) {
  const std::uint32_t p = IndexOf(shard);
  Record record;
  // The present owner may have a newer file, and SweepFolder may have deleted this file already.
  if (!ClosureRules::IsOfOwner(snapshot.epoch, state_.map[p].epoch)) return record;
  const std::string uri = snapshot.Uri();
  for (const Snapshot& known : state_.snapshots[p]) {
    if (known.Uri() != uri) continue;
    if (known.sha256 == snapshot.sha256 && known.bytes == snapshot.bytes) return {};
    // The file was deleted and then written again. The new file has the same state, but it may
    // contain another attempt number, and then has another hash.
    record.snapshot_remove[p].insert(uri);
  }
  record.snapshot_add[p].push_back(std::move(snapshot));
  Commit(record);
  return record;
}

Record DurableBook::RemoveSnapshots(ShardId shard, const std::set<std::string>& uris) {
  const std::uint32_t p = IndexOf(shard);
  Record record;
  for (const Snapshot& known : state_.snapshots[p]) {
    if (uris.contains(known.Uri())) record.snapshot_remove[p].insert(known.Uri());
  }
  Commit(record);
  return record;
}

const Snapshot* DurableBook::NewestSnapshot(ShardId shard) const {
  const std::vector<Snapshot>& known = state_.snapshots[IndexOf(shard)];
  return known.empty() ? nullptr : &known.back();
}

Record DurableBook::ResumeFrom(std::vector<Snapshot> snapshots) {
  EG_CHECK(snapshots.size() == shards_ && state_.succeeded.empty() && state_.dead.empty());
  IntervalSet done = plan_, refused;
  Record record;
  for (std::uint32_t p = 0; p < shards_; ++p) {
    EG_CHECK(state_.map[p] == ShardOwner{});
    done = done.Intersect(snapshots[p].done);
    refused.UnionWith(snapshots[p].refused.Intersect(plan_));
    record.snapshot_add[p].push_back(std::move(snapshots[p]));
  }
  // A closure that every shard has done is applied everywhere, even if one shard refuses it too.
  refused.Subtract(done);
  record.succeeded_add = std::move(done);
  record.dead_add = std::move(refused);
  Commit(record);
  return record;
}

}  // namespace evergrad::coordinator

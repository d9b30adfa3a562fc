#include "tests/simulation/map_changes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/mutants/mutant.h"

namespace evergrad::simulation {

using mutants::IsActive;
using mutants::Mutant;

std::shared_ptr<const ShardMap> MapChanges::CurrentMap() {
  const DurableState& state = book_.state();
  if (map_ && map_->version == state.version && map_->job == book_.job()) return map_;
  auto map = std::make_shared<ShardMap>();
  map->version = state.version;
  map->job = book_.job();
  for (const coordinator::ShardOwner& owner : state.map)
    map->shards.push_back({owner.epoch, owner.start, owner.server});
  return map_ = std::move(map);
}

void MapChanges::SendMap() {
  for (const auto& w : tasks_.workers()) {
    if (!w->registered) continue;
    Down m;
    m.kind = Down::kMap;
    m.map = CurrentMap();
    book_.Send(*w, std::move(m));
  }
}

void MapChanges::Apply(ClosureBook::MapChange change, const SimulatedServer& to,
                       std::unique_ptr<HeldState> moved) {
  book_.Commit(change.record);
  SendDrops(change, to);
  for (ClosureBook::AssignOrder& order : change.assigns)
    SendAssign(std::move(order), to, std::move(moved));
  if (change.map_changed) SendMap();
}

void MapChanges::SendDrops(const ClosureBook::MapChange& change, const SimulatedServer& to) {
  for (const auto& [shard, epoch] : change.drops)
    book_.Send(to, Down::AboutShard(Down::kDrop, shard.value(), epoch));
  for (const auto& [identity, former] : change.former) {
    // A former owner that has no session now learns of the change when it registers.
    if (const SimulatedServer* holder = tasks_.ConnectedServer(identity, true))
      book_.Send(*holder, Down::AboutShard(Down::kDrop, former.first.value(), former.second));
  }
}

void MapChanges::SendAssign(ClosureBook::AssignOrder order, const SimulatedServer& to,
                            std::unique_ptr<HeldState> moved) {
  Down m = Down::AboutShard(Down::kAssign, order.shard.value(), order.epoch);
  m.version = order.version;
  m.start = order.start;
  m.key = proofs_.KeyOf(book_.job());
  if (moved) {
    m.state = std::move(moved);
    m.state->shard->BecomeOwned(order.epoch, order.start, order.refused);
  } else {
    CheckRollback(order);
    m.refused = std::move(order.refused);
    m.source = std::move(order.snapshot);
  }
  walk_.Trace("assign p=", m.p, " epoch=", m.epoch.ToString(), " start=", m.start.ToString(),
              " to server ", to.process, " from=",
              m.state    ? "a move"
              : m.source ? m.source->Uri()
                         : "the seed",
              " todo=", book_.state().todo[m.p].ToString());
  book_.Send(to, std::move(m));
}

void MapChanges::CheckRollback(const ClosureBook::AssignOrder& order) {
  const std::optional<Snapshot>& snapshot = order.snapshot;
  walk_.Count("rollback");
  walk_.Count(!snapshot           ? "rolled back to the seed"
              : snapshot->resumed ? "resumed from a file"
                                  : "rolled back to a file");
  if (!snapshot || walk_.options.torn) return;
  const DurableState& state = book_.state();
  const std::uint32_t p = order.shard.value();
  const IntervalSet lacks = state.succeeded.Minus(snapshot->done).Minus(snapshot->refused);
  if (!state.todo[p].ContainsAll(lacks.Minus(state.lost[p])) && IsActive(Mutant::kNone))
    walk_.Fail(absl::StrCat("21 todo lacks what the snapshot lacks: p=", p));
}

void MapChanges::RollBack(std::uint32_t p, const SimulatedServer& to) {
  evaluation_.Void();
  Apply(book_->Rollback(ShardId(p), to.identity()), to, nullptr);
}

void MapChanges::ReplaceLostOwners() {
  for (std::uint32_t p = 0; p < kShards; ++p) {
    const std::string& identity = book_.state().map[p].server;
    if (!identity.empty() && tasks_.ConnectedServer(identity, false) != nullptr) continue;
    const double chance = !tasks_.HasServer(identity) ? 0.5 : walk_.faults() ? 0.15 : 1;
    if (!walk_.random.Chance(chance)) continue;
    const SimulatedServer& to = tasks_.AnyServer();
    if (to.registered) RollBack(p, to);
  }
}

void MapChanges::BeginMove(std::uint32_t p) {
  const coordinator::ShardOwner& owner = book_.state().map[p];
  const SimulatedServer* s =
      owner.server.empty() ? nullptr : tasks_.ConnectedServer(owner.server, true);
  if (s != nullptr) book_.Send(*s, Down::AboutShard(Down::kRelease, p, owner.epoch));
}

bool MapChanges::Move(const SimulatedServer& from, Up released) {
  const SimulatedServer* to = &tasks_.AnyServer();
  if (!to->registered) to = &from;
  std::unique_ptr<coordinator::MemoryStateStore> before;
  if (walk_.options.torn && !journal_.forgets_a_move() && to != &from && walk_.random.Chance(0.1))
    before = journal_.Copy();
  ClosureBook::MapChange change = book_->Move(ShardId(released.p), released.epoch, to->identity());
  if (change.record.empty()) return false;
  walk_.Count("move");
  if (released.state->shard->start() != change.assigns.front().start)
    walk_.Fail(absl::StrCat("5 a move changed start: p=", released.p));
  Apply(std::move(change), *to, std::move(released.state));
  // The source of the move still has the state. It must drop the state now.
  book_.Send(from, Down::AboutShard(Down::kDrop, released.p, released.epoch));
  if (!before) return false;
  journal_.BeginForgetting(std::move(before), from.process, to->process);
  return true;
}

}  // namespace evergrad::simulation

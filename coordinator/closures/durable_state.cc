#include "coordinator/closures/durable_state.h"

namespace evergrad::coordinator {

void DurableState::Resize(std::size_t shards) {
  if (map.size() < shards) map.resize(shards);
  if (todo.size() < shards) todo.resize(shards);
  if (lost.size() < shards) lost.resize(shards);
  if (snapshots.size() < shards) snapshots.resize(shards);
}

bool Record::empty() const {
  return !term && !version && map.empty() && succeeded_add.empty() && dead_add.empty() &&
         todo_add.empty() && todo_remove.empty() && lost_add.empty() && snapshot_add.empty() &&
         snapshot_remove.empty();
}

void ApplyRecord(const Record& record, DurableState* state) {
  if (record.term) state->term = *record.term;
  if (record.version) {
    state->version = *record.version;
    state->known[record.version->term] = record.version->n;
    if (state->known.size() > kKnownTermsMax) state->known.erase(state->known.begin());
  }
  for (const auto& [p, owner] : record.map) {
    state->Resize(p + 1);
    state->map[p] = owner;
  }
  state->succeeded.UnionWith(record.succeeded_add);
  state->dead.UnionWith(record.dead_add);
  for (const auto& [p, set] : record.todo_remove) {
    state->Resize(p + 1);
    state->todo[p].Subtract(set);
  }
  for (const auto& [p, set] : record.todo_add) {
    state->Resize(p + 1);
    state->todo[p].UnionWith(set);
  }
  for (const auto& [p, set] : record.lost_add) {
    state->Resize(p + 1);
    state->lost[p].UnionWith(set);
  }
  for (const auto& [p, uris] : record.snapshot_remove) {
    state->Resize(p + 1);
    std::erase_if(state->snapshots[p],
                  [&uris = uris](const Snapshot& s) { return uris.contains(s.Uri()); });
  }
  for (const auto& [p, snapshots] : record.snapshot_add) {
    state->Resize(p + 1);
    state->snapshots[p].insert(state->snapshots[p].end(), snapshots.begin(), snapshots.end());
  }
}

void AppendRecord(const Record& later, Record* into) {
  if (later.term) into->term = later.term;
  if (later.version) into->version = later.version;
  for (const auto& [p, owner] : later.map) into->map[p] = owner;
  into->succeeded_add.UnionWith(later.succeeded_add);
  into->dead_add.UnionWith(later.dead_add);
  for (const auto& [p, set] : later.todo_remove) {
    into->todo_remove[p].UnionWith(set);
    if (const auto it = into->todo_add.find(p); it != into->todo_add.end())
      it->second.Subtract(set);
  }
  for (const auto& [p, set] : later.todo_add) into->todo_add[p].UnionWith(set);
  for (const auto& [p, set] : later.lost_add) into->lost_add[p].UnionWith(set);
  for (const auto& [p, uris] : later.snapshot_remove) {
    into->snapshot_remove[p].insert(uris.begin(), uris.end());
    if (const auto it = into->snapshot_add.find(p); it != into->snapshot_add.end()) {
      std::erase_if(it->second,
                    [&uris = uris](const Snapshot& s) { return uris.contains(s.Uri()); });
      if (it->second.empty()) into->snapshot_add.erase(it);
    }
  }
  for (const auto& [p, snapshots] : later.snapshot_add) {
    std::vector<Snapshot>& all = into->snapshot_add[p];
    all.insert(all.end(), snapshots.begin(), snapshots.end());
  }
}

}  // namespace evergrad::coordinator

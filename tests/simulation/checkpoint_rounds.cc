#include "tests/simulation/checkpoint_rounds.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "tests/mutants/mutant.h"

namespace evergrad::simulation {

using mutants::IsActive;
using mutants::Mutant;

void CheckpointRounds::OrderCuts() {
  if (manifest_due_) return;
  if (round_.empty()) {
    for (std::uint32_t p = 0; p < kShards; ++p) round_.insert(p);
  }
  for (const std::uint32_t p : round_) {
    const coordinator::ShardOwner& owner = book_.state().map[p];
    SimulatedServer* s =
        owner.server.empty() ? nullptr : tasks_.ConnectedServer(owner.server, true);
    if (s != nullptr && walk_.random.Chance(0.8))
      book_.Send(*s, Down::AboutShard(Down::kWantSnapshot, p, owner.epoch));
  }
}

void CheckpointRounds::OnSnapshot(std::uint32_t p, Snapshot snapshot) {
  walk_.Count("snapshot");
  book_.Commit(book_->AddSnapshot(ShardId(p), std::move(snapshot)));
  if (round_.erase(p) > 0 && round_.empty()) manifest_due_ = NewestOfAll();
}

void CheckpointRounds::DoFileWork() {
  if (!sweeps_.empty()) {
    const Sweep sweep = std::move(sweeps_.front());
    sweeps_.pop_front();
    folder_.DeleteFiles(book_.job(), sweep);
  } else if (manifest_due_) {
    SaveManifest(*std::exchange(manifest_due_, std::nullopt));
  }
}

void CheckpointRounds::SaveLastManifest() {
  manifest_due_.reset();
  if (auto newest = NewestOfAll()) SaveManifest(*std::move(newest));
}

void CheckpointRounds::Clear() {
  round_.clear();
  manifest_due_.reset();
  sweeps_.clear();
}

std::optional<std::vector<Snapshot>> CheckpointRounds::NewestOfAll() const {
  std::vector<Snapshot> newest;
  for (std::uint32_t p = 0; p < kShards; ++p) {
    const Snapshot* snapshot = book_->NewestSnapshot(ShardId(p));
    if (snapshot == nullptr) return std::nullopt;
    newest.push_back(*snapshot);
  }
  return newest;
}

void CheckpointRounds::SaveManifest(std::vector<Snapshot> shards) {
  std::set<std::string> needed =
      folder_.AddManifest(book_.job(), std::move(shards), evaluation_.completed());
  if (IsActive(Mutant::kDeletesNamed)) needed.clear();
  Sweep sweep = ForgetUnneeded(std::move(needed));
  if (IsActive(Mutant::kDeletesBeforeDurable)) {
    folder_.DeleteFiles(book_.job(), sweep);
  } else {
    book_.AfterCommits(
        [this, sweep = std::move(sweep)]() mutable { sweeps_.push_back(std::move(sweep)); });
  }
}

Sweep CheckpointRounds::ForgetUnneeded(std::set<std::string> needed) {
  Sweep sweep;
  for (std::uint32_t p = 0; p < kShards; ++p) {
    const std::vector<Snapshot>& known = book_.state().snapshots[p];
    std::set<std::string> remove;
    for (std::size_t i = 0; i + 1 < known.size(); ++i) {
      if (!needed.contains(known[i].Uri())) remove.insert(known[i].Uri());
    }
    if (!remove.empty()) book_.Commit(book_->RemoveSnapshots(ShardId(p), remove));
    for (const Snapshot& snapshot : book_.state().snapshots[p]) {
      needed.insert(snapshot.Uri());
      if (snapshot.job == book_.job())
        sweep.newest[p] = std::max(sweep.newest[p], {snapshot.epoch, snapshot.lsn});
    }
  }
  sweep.needed = std::move(needed);
  return sweep;
}

}  // namespace evergrad::simulation

// The coordinator's checkpoints: rounds of cuts, manifests [27], and sweeps of files [30].
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "tests/simulation/evaluation_barrier.h"
#include "tests/simulation/journaled_book.h"
#include "tests/simulation/snapshot_folder.h"

namespace evergrad::simulation {

class CheckpointRounds {
 public:
  // All five outlive the rounds.
  CheckpointRounds(WalkContext& walk, Tasks& tasks, SnapshotFolder& folder, JournaledBook& book,
                   const EvaluationBarrier& evaluation)
      : walk_(walk), tasks_(tasks), folder_(folder), book_(book), evaluation_(evaluation) {}

  // Orders a cut from each owner, and orders it again from each owner that has not answered.
  void OrderCuts();
  // A file of the shard is durable.
  void OnSnapshot(std::uint32_t p, Snapshot snapshot);
  // Does one step of the file thread.
  void DoFileWork();
  // Saves a manifest of the newest files, unless a shard has none. The manifest that was due names
  // earlier files, and manifests are saved in the order of their rounds.
  void SaveLastManifest();
  // The coordinator has died, or another job begins.
  void Clear();

 private:
  std::optional<std::vector<Snapshot>> NewestOfAll() const;
  // Saves a manifest, and sweeps files once the journal has durably forgotten them.
  void SaveManifest(std::vector<Snapshot> shards);
  // Makes the book forget the files that neither a manifest nor a rollback needs.
  Sweep ForgetUnneeded(std::set<std::string> needed);

  WalkContext& walk_;
  Tasks& tasks_;
  SnapshotFolder& folder_;
  JournaledBook& book_;
  const EvaluationBarrier& evaluation_;
  std::set<std::uint32_t> round_;  // shards for whose cuts the round waits
  std::optional<std::vector<Snapshot>> manifest_due_;
  std::deque<Sweep> sweeps_;
};

}  // namespace evergrad::simulation

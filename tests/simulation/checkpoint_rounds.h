// The checkpoints of the simulated coordinator: rounds in which every shard is cut, manifests [27],
// and sweeps, which delete files that are no longer needed [30].
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
  // All five referenced objects must outlive the rounds.
  CheckpointRounds(WalkContext& walk, Tasks& tasks, SnapshotFolder& folder, JournaledBook& book,
                   const EvaluationBarrier& evaluation)
      : walk_(walk), tasks_(tasks), folder_(folder), book_(book), evaluation_(evaluation) {}

  // Orders a cut from each owner. In a later call, orders it again from each owner that has not
  // answered.
  void OrderCuts();
  // Called when a file of shard p is durable.
  void OnSnapshot(std::uint32_t p, Snapshot snapshot);
  // Does one step of the file thread.
  void DoFileWork();
  // Saves a manifest of the newest files, unless a shard has no file. A manifest that waits to be
  // saved is dropped. It names earlier files, and manifests must be saved in the order of their
  // rounds.
  void SaveLastManifest();
  // Called when the coordinator has died, or when another job begins.
  void Clear();

 private:
  std::optional<std::vector<Snapshot>> NewestOfAll() const;
  // Saves a manifest. Files are deleted once the journal has durably forgotten them.
  void SaveManifest(std::vector<Snapshot> shards);
  // Makes the book forget the files that no manifest and no rollback needs.
  Sweep ForgetUnneeded(std::set<std::string> needed);

  WalkContext& walk_;
  Tasks& tasks_;
  SnapshotFolder& folder_;
  JournaledBook& book_;
  const EvaluationBarrier& evaluation_;
  std::set<std::uint32_t> round_;  // the shards whose cuts are missing in the round
  std::optional<std::vector<Snapshot>> manifest_due_;
  std::deque<Sweep> sweeps_;
};

}  // namespace evergrad::simulation

// The end of a job before its plan [20a]: the user cancels the job, and each owner seals its shards
// and writes the last cuts.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>

#include "tests/simulation/checkpoint_rounds.h"
#include "tests/simulation/end_checks.h"
#include "tests/simulation/journaled_book.h"

namespace evergrad::simulation {

class EarlyEnd {
 public:
  // All five outlive this object.
  EarlyEnd(WalkContext& walk, Tasks& tasks, InvariantChecker& checker, JournaledBook& book,
           CheckpointRounds& rounds)
      : walk_(walk), tasks_(tasks), checker_(checker), book_(book), rounds_(rounds) {}

  bool begun() const { return begun_; }
  // Returns whether the user was told that the job has ended.
  bool told() const { return told_; }
  void Begin();
  // The coordinator begins a life. It has forgotten the answers of sealed shards to earlier lives.
  void BeginLife();
  // Another job begins.
  void BeginJob();

  // Orders the server to seal the shards that it owns.
  void SendSeals(const SimulatedServer& s);
  void OnSealed(Up m);
  // The owner cannot load the shard: there is nothing to seal.
  void OnUnloadable(std::uint32_t p) { unsealed_.erase(p); }
  // The owner has registered and does not hold the shard. Another process of the identity may live,
  // disconnected. It no longer owns the shard, so the updates that it applies are void (seed 6880).
  void OnUnheld(ShardId p);
  // Tells the user of the end, if all owners have answered. When the time is out, silent owners no
  // longer own their shards, so that their later updates are void.
  void Check(bool out_of_time);

  // Checks the files that a resume would find [28].
  void CheckLastCuts(const SnapshotFolder& folder, EndChecks& checks) const;

 private:
  void SendSeal(const SimulatedServer& s, std::uint32_t p);
  void Unmap(ShardId p);

  WalkContext& walk_;
  Tasks& tasks_;
  InvariantChecker& checker_;
  JournaledBook& book_;
  CheckpointRounds& rounds_;
  bool begun_ = false, told_ = false;
  std::set<std::uint32_t> unsealed_;
  std::array<std::string, kShards> cuts_;  // the cuts after the seal, by URI
};

}  // namespace evergrad::simulation

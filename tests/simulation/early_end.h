// The end of a job before the end of its plan [20a]: the user cancels the job, and each owner seals
// its shards and writes the last cuts.
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
  // All five referenced objects must outlive this object.
  EarlyEnd(WalkContext& walk, Tasks& tasks, InvariantChecker& checker, JournaledBook& book,
           CheckpointRounds& rounds)
      : walk_(walk), tasks_(tasks), checker_(checker), book_(book), rounds_(rounds) {}

  bool begun() const { return begun_; }
  // Returns whether the user was told that the job has ended.
  bool told() const { return told_; }
  void Begin();
  // Called when the coordinator begins a life. The new life does not know which sealed shards had
  // answered.
  void BeginLife();
  // Called when another job begins.
  void BeginJob();

  // Orders the server to seal the shards that it owns.
  void SendSeals(const SimulatedServer& s);
  void OnSealed(Up m);
  // Called when the owner cannot load the shard. There is then nothing to seal.
  void OnUnloadable(std::uint32_t p) { unsealed_.erase(p); }
  // Called when the owner of the shard has registered and does not hold the shard. A disconnected
  // process of the same identity may still live and hold it. That process no longer owns the shard,
  // so the updates that it applies do not count (this case was found with seed 6880).
  void OnUnheld(ShardId p);
  // Tells the user of the end, if all owners have answered. If `out_of_time`, it does not wait for
  // the others. Owners that have not answered then no longer own their shards, so that their later
  // updates do not count.
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
  std::array<std::string, kShards> cuts_;  // for each shard, the URI of the cut after the seal
};

}  // namespace evergrad::simulation

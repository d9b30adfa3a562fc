// Handles the Hellos of tasks at the coordinator [18, 25, 26], and its start-up window, in which it
// collects them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/simulation/coordinator_parts.h"

namespace evergrad::simulation {

class Registrations {
 public:
  // `parts` must outlive this object.
  explicit Registrations(CoordinatorParts& parts) : parts_(parts), walk_(parts.walk) {}

  // Called when a process of the coordinator begins. `life` is a random number that differs in each
  // process.
  void BeginLife(std::uint64_t life) { life_ = life; }
  void Clear() { waiting_.clear(); }
  // The Hello of a worker waits until the start-up window closes. Before that, a server may still
  // register with a shard that the journal has forgotten, so no worker may get a shard map.
  void Register(SimulatedWorker& w, Up hello);
  void Register(SimulatedServer& s, Up hello);
  void CloseWindow();

 private:
  struct Held {
    std::vector<ClosureBook::HeldShard> shards;                 // the shards of the running job
    std::vector<std::pair<std::uint32_t, ShardEpoch>> stopped;  // those stopped for a move
  };
  // [18] Begins a new life of the coordinator if the task has reported a later life than this one.
  void BeginAnewIfNeeded(const coordinator::ReportedLife& reported, const Task& from);
  std::vector<ClosureBook::HeldAttempt> ProvedAttempts(const Up& hello);
  void ReleaseEarlier(SimulatedWorker& w);
  // Tells the server which of its jobs have ended. Returns the shards of the running job.
  Held SortShards(const SimulatedServer& s, Up hello);
  // Called for a shard of a job that is not the running job.
  void CheckUnknownJob(JobUid job);
  void RegisterShards(const SimulatedServer& s, const std::vector<ClosureBook::HeldShard>& held);
  // Called when a leaving server registers. Moves that had begun in its previous session begin once
  // more.
  void BeginMovesAgain(const SimulatedServer& s, const Held& held);

  CoordinatorParts& parts_;
  WalkContext& walk_;
  std::uint64_t life_ = 0;
  // Hellos of workers, until the start-up window closes.
  std::vector<std::pair<TaskId, Up>> waiting_;
};

}  // namespace evergrad::simulation

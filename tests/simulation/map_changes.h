// The changes of the coordinator's shard map, and the messages of each change.
#pragma once

#include <cstdint>
#include <memory>

#include "tests/simulation/evaluation_barrier.h"
#include "tests/simulation/grant_proofs.h"
#include "tests/simulation/journaled_book.h"

namespace evergrad::simulation {

class MapChanges {
 public:
  // All six references outlive this object.
  MapChanges(WalkContext& walk, Tasks& tasks, SimulatedJournal& journal, JournaledBook& book,
             EvaluationBarrier& evaluation, const GrantProofs& proofs)
      : walk_(walk),
        tasks_(tasks),
        journal_(journal),
        book_(book),
        evaluation_(evaluation),
        proofs_(proofs) {}

  // Returns the shard map that workers get.
  std::shared_ptr<const ShardMap> CurrentMap();
  // Assigns the shard to `to`, with the newest durable snapshot or from the seed [21].
  void RollBack(std::uint32_t p, const SimulatedServer& to);
  // Rolls back some shards whose owner has no session. If the owner's process is still alive, this
  // is as if its lease ended early.
  void ReplaceLostOwners();
  // Makes the owner of a shard stop it for a move [22].
  void BeginMove(std::uint32_t p);
  // Called when the state of a shard has left its owner `from`. Gives it to a server that the seed
  // draws. Returns whether the journal is going to forget this move, in which case the owner must
  // be disconnected.
  bool Move(const SimulatedServer& from, Up released);
  // Commits the change and sends its messages. `moved` is the state that a move hands over.
  void Apply(ClosureBook::MapChange change, const SimulatedServer& to,
             std::unique_ptr<HeldState> moved);

 private:
  void SendDrops(const ClosureBook::MapChange& change, const SimulatedServer& to);
  void SendAssign(ClosureBook::AssignOrder order, const SimulatedServer& to,
                  std::unique_ptr<HeldState> moved);
  // Counts the kind of a rollback, and checks that the closures to be done again include what the
  // snapshot lacks [21].
  void CheckRollback(const ClosureBook::AssignOrder& order);
  void SendMap();

  WalkContext& walk_;
  Tasks& tasks_;
  SimulatedJournal& journal_;
  JournaledBook& book_;
  EvaluationBarrier& evaluation_;
  const GrantProofs& proofs_;
  std::shared_ptr<const ShardMap> map_;
};

}  // namespace evergrad::simulation

// Makes the changes of the coordinator's shard map, and sends the messages of each change.
#pragma once

#include <cstdint>
#include <memory>

#include "tests/simulation/evaluation_barrier.h"
#include "tests/simulation/grant_proofs.h"
#include "tests/simulation/journaled_book.h"

namespace evergrad::simulation {

class MapChanges {
 public:
  // All six referenced objects must outlive this object.
  MapChanges(WalkContext& walk, Tasks& tasks, SimulatedJournal& journal, JournaledBook& book,
             EvaluationBarrier& evaluation, const GrantProofs& proofs)
      : walk_(walk),
        tasks_(tasks),
        journal_(journal),
        book_(book),
        evaluation_(evaluation),
        proofs_(proofs) {}

  // Returns the shard map that is sent to workers.
  std::shared_ptr<const ShardMap> CurrentMap();
  // Assigns the shard to `to`. It begins from the newest durable snapshot, or without one from its
  // initial values [21].
  void RollBack(std::uint32_t p, const SimulatedServer& to);
  // Rolls back some shards whose owner has no session. The owner's process may still be alive; this
  // is then as if its lease ended early.
  void ReplaceLostOwners();
  // Makes the owner of a shard stop serving it, so that it can be moved [22].
  void BeginMove(std::uint32_t p);
  // Called when the owner `from` has sent the state of a shard for a move. Gives the shard to a
  // server that the walk draws. Returns whether the journal is going to forget this move. In this
  // case the owner must be disconnected.
  bool Move(const SimulatedServer& from, Up released);
  // Commits the change and sends its messages. `moved` is the state that a move hands over, or
  // null.
  void Apply(ClosureBook::MapChange change, const SimulatedServer& to,
             std::unique_ptr<HeldState> moved);

 private:
  void SendDrops(const ClosureBook::MapChange& change, const SimulatedServer& to);
  void SendAssign(ClosureBook::AssignOrder order, const SimulatedServer& to,
                  std::unique_ptr<HeldState> moved);
  // Counts the kind of a rollback. Checks that the closures to be done again include all that the
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

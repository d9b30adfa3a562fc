// Tracks which ended closures the owner of each shard knows: the Close messages that were sent in
// the owner's session (LEDGER line 24), and the closures that the owner is known to refuse (line
// 20). A new life of the coordinator knows nothing about the owners. Numbers in brackets are lines
// of LEDGER. A pure state machine: no clock, no threads, no I/O. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/closures/durable_book.h"

namespace evergrad::coordinator {

class CloseTracker {
 public:
  struct Order {
    ShardId shard;
    ShardEpoch epoch;
    MapVersion version;
    IntervalSet done, refused;
    bool whole = false;
  };
  explicit CloseTracker(std::uint32_t shards) : refusing_(shards) {}
  void BeginLife();

  // [24] Returns the Close messages that are due for the shards of `server`. A shard gets one only
  // if the sets of ended closures in it have changed. For each (session, shard, epoch) the first
  // Close holds all closures, and each later Close holds only the closures added since the previous
  // Close. If the server answers `ignored`, the next Close holds all closures again. At most one
  // Close is in flight for each shard; the next Close follows OnClosed.
  std::vector<Order> Make(TaskId session, const std::string& server, const DurableBook& book);
  void OnClosed(TaskId session, ShardId shard, ShardEpoch epoch, bool taken,
                const DurableState& state);
  void EndSession(TaskId session);
  // Returns whether every owner has acknowledged all closures that a Close could name now.
  bool Settled(const DurableBook& book) const;

  // [20] Notes that the owner named in the Assign refuses the closures that the order lists as
  // refused, and those that the order's snapshot lists as refused.
  void OnAssign(const DurableBook::AssignOrder& order);
  // [20] Returns whether each owner of a shard has answered a Close with `closures`, or has got
  // them in its Assign.
  bool RefusedEverywhere(const IntervalSet& closures, const DurableState& state) const;

 private:
  struct Sent {
    ShardEpoch epoch;
    std::uint64_t revision = 0;
    bool pending = false, whole_next = true;
    IntervalSet done, refused;  // all closures sent under this epoch
  };
  struct Refusing {
    ShardEpoch epoch;
    IntervalSet refused;
  };
  std::map<std::pair<TaskId, std::uint32_t>, Sent> sent_;  // by session and shard
  std::vector<Refusing> refusing_;  // by shard: closures that its owner is known to refuse
};

}  // namespace evergrad::coordinator

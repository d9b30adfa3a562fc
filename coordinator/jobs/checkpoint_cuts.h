// The cuts of one round of checkpoints: the orders that tell servers which shards to save, and the
// shards whose answers are awaited.
//
//   Order ─▶ CutShards to each server ─▶ Answered for each shard, or DropLost
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from JobHost.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "common/base/ids.h"
#include "coordinator/jobs/job_host.h"

namespace evergrad::coordinator {

class CheckpointCuts : private JobPart {
 public:
  struct Awaited {
    ShardEpoch epoch;
    // The server's registration when it got the order. Answers from a later registration are not
    // awaited.
    TaskId task;
  };
  explicit CheckpointCuts(const JobPart& part) : JobPart(part) {}

  // Orders every connected server to cut the shards that it holds, and to write the files into
  // `folder`. Shards for which `skips` returns true are left out. Answers to earlier orders are no
  // longer awaited.
  void Order(const std::string& folder, const std::function<bool(ShardId)>& skips);
  // Stops awaiting answers for a shard if its server has disconnected, or if the shard has another
  // owner or epoch now.
  void DropLost();
  // Returns whether an answer for this epoch of the shard is awaited.
  bool Awaits(ShardId shard, ShardEpoch epoch) const;
  void Answered(ShardId shard) { awaited_.erase(shard); }
  void Clear() { awaited_.clear(); }
  const std::map<ShardId, Awaited>& awaited() const { return awaited_; }

 private:
  std::map<ShardId, Awaited> awaited_;
};

}  // namespace evergrad::coordinator

// Takes the cuts of one executor's shards (LEDGER lines 22 and 27).
//
// A cut that is ordered during an apply is taken when the apply has ended, before the next apply
// begins. The rows of a slot are captured later, slice by slice, between the pushes to the slot.
// Runs on the shards' executor, except for ShardCut::next_slice.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/runtime/executor.h"
#include "ps_server/service/hosted_shards.h"

namespace evergrad::ps_server {

class ShardCuts {
 public:
  // Executor and shards outlive the cuts, and the executor is shut down before the cuts are
  // destroyed.
  ShardCuts(runtime::Executor* executor, HostedShards* shards)
      : executor_(*executor), shards_(*shards) {}

  // Receives the cut, or NotFound if the shard is not held at this epoch, or is no longer held when
  // the update in progress has ended. Must neither block nor call this class.
  using Ready = std::function<void(absl::StatusOr<ShardCut>)>;
  // Cuts the state between two updates. With `stop` the shard stops first (Shard::Stop). If the
  // executor ends before the cut, `ready` is destroyed without a call.
  void Take(const ShardKey& key, ShardEpoch epoch, bool stop, Ready ready);
  // Answers the waiting cuts of a shard whose apply has ended.
  void ApplyEnded(const ShardKey& key, const Shard& shard) {
    if (!waiting_.empty()) AnswerWaiting(key, shard);
  }
  // Refuses the waiting cuts of a shard that is to be removed.
  void Removed(const ShardKey& key, ShardEpoch epoch);

 private:
  using SliceReady = std::function<void(absl::StatusOr<SlotSlice>)>;
  void AnswerWaiting(const ShardKey& key, const Shard& shard);
  ShardCut CutOf(const Shard& shard);
  void TakeSlice(ShardKey key, ShardEpoch epoch, std::uint64_t serial, const SliceReady& ready);

  runtime::Executor& executor_;
  HostedShards& shards_;
  // Cuts that wait for the end of an apply; each key is a held shard.
  std::map<ShardKey, std::vector<Ready>> waiting_;
};

}  // namespace evergrad::ps_server

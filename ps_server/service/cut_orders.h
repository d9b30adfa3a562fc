// The coordinator's orders to cut shards, and their answers (LEDGER line 27).
//
// An order is answered once per shard, in the session of the order: with the file, or with the
// reason for its absence. There is one exception: if a newer order for a shard replaces a waiting
// order, the answer to the newer order counts for both orders. Runs on the control executor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/log/log.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"
#include "evergrad/v1/session.pb.h"
#include "ps_server/service/session_sender.h"
#include "ps_server/service/shard_directory.h"
#include "ps_server/service/shard_executor.h"
#include "ps_server/snapshot/snapshot_writer.h"

namespace evergrad::ps_server {

class CutOrders {
 public:
  struct Options {
    // All pointers outlive this object, except the writer, which is destroyed first.
    runtime::Executor* executor = nullptr;
    SnapshotWriter* writer = nullptr;
    log::Logger* logger = nullptr;
    const Clock* clock = nullptr;
    ShardDirectory* directory = nullptr;
    SessionSender* sender = nullptr;
    // Returns the executor of a shard.
    std::function<ShardExecutor&(ShardId)> shard_executor;
  };
  explicit CutOrders(Options options) : options_(std::move(options)) {}

  // Orders the cuts. A shard that is not held at the epoch, or that is being restored, is answered
  // at once.
  void Submit(const v1::CutShards& cut);

 private:
  // Counts the orders of one CutShards, for the log.
  struct Round {
    JobUid job;
    MonoTime begin{};
    std::size_t shards = 0, left = 0, files = 0, failed = 0;
    std::uint64_t bytes = 0;
    std::string first_failure;
    bool told_of_retry = false;
  };
  // The order to cut one shard of a round. `session` is the session in which the order arrived.
  struct Order {
    ShardKey key;
    ShardEpoch epoch;
    std::uint64_t session = 0;
    std::shared_ptr<Round> round;  // shared by the orders of the round
  };
  // Orders the cut of one shard. The error is the reason why the shard cannot be cut.
  absl::Status SubmitOne(const Order& order, const v1::CutShards& cut);
  void OnDropped(const Order& order, const absl::Status& cause);
  void OnEnded(const Order& order, const absl::StatusOr<DurableCut>& result);

  const Options options_;
};

}  // namespace evergrad::ps_server

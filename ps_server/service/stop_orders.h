// The coordinator's orders to stop shards that move to another server, and their answers (LEDGER
// line 22).
//
// An order is answered once, in its session: with the size and hash of the shard's image, or with
// the reason for its absence. If the shard has been dropped meanwhile, the order is not answered.
// Runs on the control executor.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/runtime/executor.h"
#include "evergrad/v1/session.pb.h"
#include "ps_server/service/session_sender.h"
#include "ps_server/service/shard_directory.h"
#include "ps_server/service/shard_executor.h"
#include "ps_server/snapshot/images.h"

namespace evergrad::ps_server {

class StopOrders {
 public:
  struct Options {
    // All pointers outlive this object, except the images, which are destroyed first.
    runtime::Executor* executor = nullptr;
    Images* images = nullptr;  // null if this server moves no shards
    ShardDirectory* directory = nullptr;
    SessionSender* sender = nullptr;
    // Returns the executor of a shard.
    std::function<ShardExecutor&(ShardId)> shard_executor;
  };
  explicit StopOrders(Options options) : options_(std::move(options)) {}

  // Stops the shard and orders its image. `term` is the term of the session. The directory keeps
  // the term of the first order for the shard.
  void Submit(const v1::StopShard& stop, std::uint64_t term);

 private:
  // The order to stop one shard. `session` is the session in which the order arrived.
  struct Order {
    ShardKey key;
    ShardEpoch epoch;
    std::uint64_t session = 0;
    std::string plan_fingerprint;
  };
  void OnStopped(const Order& order, absl::StatusOr<ShardCut> cut);
  void Answer(const Order& order, const absl::StatusOr<snapshot::FileDigest>& image);

  const Options options_;
};

}  // namespace evergrad::ps_server

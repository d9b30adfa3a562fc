// The shards that the coordinator is moving to this server (LEDGER line 22). Some of these shards
// are being read from their owners; other shards have been read and are not assigned yet.
//
// Received shards are dropped when the session of their orders ends. Runs on the control executor;
// the restorer performs the reading.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/client/parameter_client.h"
#include "common/fault/failpoints.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"
#include "evergrad/v1/session.pb.h"
#include "ps_server/service/job_table.h"
#include "ps_server/service/shard_key.h"
#include "ps_server/snapshot/restorer.h"

namespace evergrad::ps_server {

class ReceivedShards {
 public:
  struct Options {
    // All pointers outlive this object, except the restorer, which is destroyed first.
    runtime::Executor* executor = nullptr;
    Restorer* restorer = nullptr;
    // Connections to other servers; null for none.
    client::ParameterClient* peers = nullptr;
    const Clock* clock = nullptr;
    JobTable* jobs = nullptr;
    fault::Failpoints* failpoints = nullptr;  // has move.received; may be null
    // Called on the executor with the result of a reading that is still needed.
    std::function<void(const ShardKey& key, ShardEpoch from, const absl::Status& status)> received;
  };
  explicit ReceivedShards(Options options) : options_(std::move(options)) {}

  // Begins to read the shard, in place of an earlier reading of the same shard. After an error
  // `received` is not called, and an earlier reading of the shard continues, except if the restorer
  // has refused the new reading. The error is Unimplemented if there are no peers, and
  // InvalidArgument if the order is malformed.
  absl::Status Begin(const v1::ReceiveShard& receive);
  // Returns the shard that was read at epoch `from`, or null if there is none.
  std::unique_ptr<Shard> Take(const ShardKey& key, ShardEpoch from);
  // Ends the reading of a shard, or frees a shard that was read.
  void Forget(const ShardKey& key);
  void Forget(const ShardKey& key, ShardEpoch from);  // only if the shard comes from this epoch
  void ForgetJob(JobUid job);
  void ForgetAll();

 private:
  struct Reading {
    ShardEpoch from;
    std::uint64_t number = 0;                // number of the order
    std::unique_ptr<Shard> shard = nullptr;  // null while it is being read
    // Shared with the reader, which stops when the flag is true.
    std::shared_ptr<std::atomic<bool>> unwanted = std::make_shared<std::atomic<bool>>(false);
  };
  using Readings = std::map<ShardKey, Reading>;
  void OnRead(const ShardKey& key, std::uint64_t number,
              absl::StatusOr<std::unique_ptr<Shard>> shard);
  Readings::iterator Erase(Readings::iterator reading);

  const Options options_;
  Readings readings_;
  std::uint64_t orders_ = 0;
};

}  // namespace evergrad::ps_server

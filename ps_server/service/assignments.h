// Loads the shards that the coordinator assigns to this server, and answers each Assign (LEDGER
// lines 21, 22 and 28).
//
// A shard comes from its seed, from a file, or from another server. From the Assign on, the
// directory contains the shard as loading, so that a Hello names the shard. The answer is sent when
// the shard's executor holds the shard. If a newer Assign or a Drop arrives first, the older Assign
// is not answered. Runs on the control executor, except for the callbacks of shards and of the
// restorer.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/log/log.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"
#include "evergrad/v1/session.pb.h"
#include "ps_server/service/job_table.h"
#include "ps_server/service/received_shards.h"
#include "ps_server/service/session_sender.h"
#include "ps_server/service/shard_directory.h"
#include "ps_server/service/shard_executor.h"
#include "ps_server/snapshot/restorer.h"

namespace evergrad::ps_server {

class Assignments {
 public:
  struct Options {
    // All pointers outlive this object, except the restorer, which is destroyed first.
    runtime::Executor* executor = nullptr;
    Restorer* restorer = nullptr;
    log::Logger* logger = nullptr;
    const Clock* clock = nullptr;
    JobTable* jobs = nullptr;
    ShardDirectory* directory = nullptr;
    ReceivedShards* received = nullptr;
    SessionSender* sender = nullptr;
    // Returns the executor of a shard.
    std::function<ShardExecutor&(ShardId)> shard_executor;
    // Cancels the orders that concern the old copy of a shard and still wait for an I/O thread.
    std::function<void(const ShardKey&)> cancel_orders;
  };
  explicit Assignments(Options options) : options_(std::move(options)) {}

  // Begins to load the shard, in place of a held copy. A repeated Assign is answered when the shard
  // is loaded. Three errors are answered at once, and do not change the held shard:
  // FailedPrecondition if the held epoch is higher, InvalidArgument if the Assign is malformed, and
  // NotFound if the moved shard has not been received. After InvalidArgument or NotFound, any state
  // of this shard that the server has received for a move is freed.
  void Submit(const v1::Assign& assign);

 private:
  // The content of an Assign that has passed Check.
  struct Assignment {
    RestoreOptions what;           // `source.uri` is empty if the shard is not read from a file
    std::unique_ptr<Shard> moved;  // the received shard; null if the shard was not moved
  };
  // Checks an Assign. Takes the received shard, if the Assign names one.
  absl::StatusOr<Assignment> Check(const v1::Assign& assign, const ShardKey& key);
  void Load(const ShardKey& key, Assignment assignment);
  // Begins to read the file. Called when the old shard has been freed.
  void BeginRestore(RestoreOptions what);
  void OnRestored(ShardKey key, ShardEpoch epoch, absl::StatusOr<std::unique_ptr<Shard>> shard);
  // Returns a function that any thread may call, and that calls OnLoaded on the executor.
  std::function<void(ShardExecutor::Loaded)> WhenLoaded(ShardKey key, ShardEpoch epoch);
  void OnLoaded(ShardKey key, ShardEpoch epoch, const ShardExecutor::Loaded& loaded);
  void Answer(const ShardKey& key, ShardEpoch epoch, const absl::Status& status);
  bool IsLoading(ShardKey key, ShardEpoch epoch);

  const Options options_;
};

}  // namespace evergrad::ps_server

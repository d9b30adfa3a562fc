// Reads shards back from their files, on a separate I/O thread (LEDGER lines 21, 28).
//
// The restorer reads one shard at a time and needs memory for that shard and one block. Nobody owns
// the shard before the last byte was checked. Thread-safe. Callbacks run without a lock on the
// restorer's thread, or on the caller's thread of Submit, Cancel and the destructor.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/fault/failpoints.h"
#include "common/fs/file_system.h"
#include "common/metrics/metrics.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"
#include "ps_server/snapshot/cut_file.h"

namespace evergrad::ps_server {

class Restorer {
 public:
  struct Options {
    fs::FileSystem* files = nullptr;  // All pointers outlive the restorer.
    metrics::Registry* registry = nullptr;
    const Clock* clock = nullptr;
    // May be null; the point is snapshot.restore (each MiB).
    fault::Failpoints* failpoints = nullptr;
    std::shared_ptr<storage::ChunkPool> pool;  // pool of the server's shards; may be null
    // One order per shard; the limit is far above the number of shards of a server.
    std::size_t orders_max = 64 * 1024;
  };
  struct Order {
    // Pool, failpoints and `cancelled` of the source are set by the restorer. So are its files,
    // unless the order brings others, which `done` keeps alive.
    RestoreOptions what;
    // Called exactly once: with the shard; with Cancelled; with Aborted, because a newer order
    // replaced this one; or with the error of RestoreShard.
    std::function<void(absl::StatusOr<std::unique_ptr<Shard>>)> done;
  };

  explicit Restorer(Options options);
  ~Restorer();  // the shard in progress ends within a MiB; orders are answered Cancelled
  Restorer(const Restorer&) = delete;
  Restorer& operator=(const Restorer&) = delete;

  // Never blocks. An order of a shard ends every earlier order of that shard: a waiting order is
  // answered Aborted, and one in progress ends within a MiB. ResourceExhausted if orders_max orders
  // wait; then `done` is not called.
  absl::Status Submit(Order order);
  // The shard, or every shard of a job, is no longer wanted. Waiting orders are answered Cancelled,
  // and the one in progress ends within a MiB.
  void Cancel(JobUid job, std::optional<ShardId> shard = std::nullopt);

  std::size_t waiting() const;

 private:
  void Run();
  bool Unwanted() const;

  const Options options_;
  metrics::Counter &bytes_read_, &restored_, &cancelled_, &failed_;
  metrics::Histogram& seconds_;
  metrics::Limit orders_limit_;

  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Order> queue_ ABSL_GUARDED_BY(mu_);  // at most one for each shard
  std::optional<std::pair<JobUid, ShardId>> current_ ABSL_GUARDED_BY(mu_);
  bool current_cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<runtime::Thread> thread_;  // last, so that it is joined first
};

}  // namespace evergrad::ps_server

// Reads shards back from their files, on one I/O thread of its own (LEDGER lines 21, 28).
//
// One shard at a time: while it is being read, memory is that shard and one block. Nothing is
// anybody's before the last byte was checked. Thread-safe. Callbacks run on the restorer's thread
// (or the caller's of Submit, Cancel and the destructor) without a lock held.
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
    fault::Failpoints* failpoints = nullptr;   // May be null: snapshot.restore (each MiB)
    std::shared_ptr<storage::ChunkPool> pool;  // of the server's shards; may be null
    std::size_t orders_max = 64 * 1024;        // one for each shard; far above what a server holds
  };
  struct Order {
    // Pool, failpoints and `cancelled` of the source are the restorer's own; its files, too, unless
    // the order brings others (which `done` keeps alive).
    RestoreOptions what;
    // Exactly once: the shard; or Cancelled, Aborted (a newer order took its place), or the error
    // of RestoreShard.
    std::function<void(absl::StatusOr<std::unique_ptr<Shard>>)> done;
  };

  explicit Restorer(Options options);
  ~Restorer();  // The one being read ends within a MiB; orders are answered Cancelled.
  Restorer(const Restorer&) = delete;
  Restorer& operator=(const Restorer&) = delete;

  // Never blocks. An order of a shard ends every earlier one of it: one that waits is answered
  // Aborted, the one being read ends within a MiB. ResourceExhausted: orders_max wait; then `done`
  // is not called.
  absl::Status Submit(Order order);
  // The shard, or all of a job, is not wanted any more: waiting orders are answered Cancelled, the
  // one being read ends within a MiB.
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
  std::optional<runtime::Thread> thread_;  // last: joined first
};

}  // namespace evergrad::ps_server

// Reads shards back from their files, on a separate I/O thread (LEDGER lines 21, 28).
//
// The restorer reads one shard at a time, and uses the memory of that shard and of one block. No
// other thread sees the shard before its last byte was checked. Thread-safe. Callbacks run on the
// restorer's thread, or on the thread that calls Submit, Cancel or the destructor, without a lock
// held.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/fault/failpoints.h"
#include "common/fs/file_system.h"
#include "common/metrics/metrics.h"
#include "common/time/clock.h"
#include "ps_server/snapshot/cut_file.h"
#include "ps_server/snapshot/order_queue.h"

namespace evergrad::ps_server {

class Restorer {
 public:
  struct Options {
    fs::FileSystem* files = nullptr;  // All pointers outlive the restorer.
    metrics::Registry* registry = nullptr;
    const Clock* clock = nullptr;
    fault::Failpoints* failpoints = nullptr;   // has snapshot.restore (for each MiB); may be null
    std::shared_ptr<storage::ChunkPool> pool;  // of the server's shards; may be null
    // Limit of the waiting orders. Each shard has at most one, and a server has far fewer shards.
    std::size_t orders_max = 64 * 1024;
  };
  struct Order {
    // The restorer sets pool, failpoints and `cancelled` of the source, and also its file system if
    // the order does not set one. If the order sets a file system, `done` must keep that file
    // system alive.
    RestoreOptions what;
    // Called exactly once: with the shard, Cancelled, Aborted (a newer order has replaced this
    // one), or the error of RestoreShard.
    std::function<void(absl::StatusOr<std::unique_ptr<Shard>>)> done;
  };

  explicit Restorer(Options options);
  // Ends the read in progress after at most 1 MiB, and answers all orders with Cancelled.
  ~Restorer();
  Restorer(const Restorer&) = delete;
  Restorer& operator=(const Restorer&) = delete;

  // Orders the reading of a shard. Never blocks. An order ends all earlier orders of its shard: a
  // waiting order is answered Aborted, and a read in progress stops after at most 1 MiB. Returns
  // ResourceExhausted if orders_max orders wait. In this case `done` is not called.
  absl::Status Submit(Order order);
  // Cancels the orders of the shard, or of all shards of a job: waiting orders are answered
  // Cancelled, and a read in progress stops after at most 1 MiB.
  void Cancel(JobUid job, std::optional<ShardId> shard = std::nullopt);

  std::size_t waiting() const { return orders_.waiting(); }

 private:
  using Orders = OrderQueue<Order>;
  void Perform(Order order);

  const Options options_;
  metrics::Counter &bytes_read_, &restored_, &cancelled_, &failed_;
  metrics::Histogram& seconds_;
  metrics::Limit orders_limit_;
  Orders orders_;  // this is the last member, because its thread uses the others
};

}  // namespace evergrad::ps_server

// Writes snapshots of shards to files, on a separate I/O thread (LEDGER line 27). A cut is the
// state of a shard at one moment, and a snapshot is a cut in a file.
//
// A waiting order holds no memory: its cut is taken when the order is performed, so there is at
// most one cut, and memory is bounded by the largest shard. A push never waits for the writer. If
// memory or disk space is exhausted, or if the disk fails, the cut is dropped, counted and taken
// again later. Errors that a retry cannot repair are reported in the answer. An example is a shard
// whose values and optimizer state exceed the limit. Thread-safe. Callbacks run on the writer's
// thread, or on the thread that calls Cancel or the destructor, without a lock held.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/fault/failpoints.h"
#include "common/fs/file_system.h"
#include "common/metrics/metrics.h"
#include "common/runtime/arrival.h"
#include "common/time/clock.h"
#include "ps_server/snapshot/cut_file.h"
#include "ps_server/snapshot/order_queue.h"

namespace evergrad::ps_server {

class SnapshotWriter {
 public:
  struct Options {
    fs::FileSystem* files = nullptr;  // All pointers outlive the writer.
    metrics::Registry* registry = nullptr;
    const Clock* clock = nullptr;
    // Has the failpoints snapshot.before_cut, snapshot.report and those of WriteCut. May be null.
    fault::Failpoints* failpoints = nullptr;
    // The pool of the server's shards, which the writer warms before a cut. May be null.
    std::shared_ptr<storage::ChunkPool> pool;
    // Limit of one cut, with values, optimizer state and ledger (`snapshot_bytes_max`).
    std::uint64_t bytes_max = 1ull << 30;
    // Limit of the waiting orders. Each shard has at most one, and a server has far fewer shards.
    std::size_t orders_max = 64 * 1024;
    // The first and the longest delay after a dropped cut. Each delay is twice the previous one.
    std::chrono::milliseconds retry_first{1000}, retry_max{30000};
  };
  struct Order {
    JobUid job;
    ShardId shard;
    std::string folder;
    std::string plan_fingerprint;
    // Size of values and optimizer state; 0 if not known. The pushes after a cut write this much
    // memory beside the old values. The writer allocates the spare blocks before the cut is taken,
    // so that no push waits for new memory.
    std::uint64_t bytes = 0;
    // Called when the order is performed; must not block. Makes the shard's executor call `ready`
    // with the cut, or with the reason for its absence (NotFound if the shard is no longer held). A
    // `ready` that is destroyed without a call counts as Cancelled.
    std::function<void(std::function<void(absl::StatusOr<ShardCut>)> ready)> take;
    // Called exactly once: with the durable file, Cancelled, Aborted (a newer order has replaced
    // this one), or an error that a retry would not repair.
    std::function<void(absl::StatusOr<DurableCut>)> done;
    // Called on the writer's thread each time the cut was dropped, with the reason. The cut is
    // taken again later. May be null.
    std::function<void(const absl::Status&)> dropped = nullptr;
  };

  explicit SnapshotWriter(Options options);
  ~SnapshotWriter();  // drops the cut in progress, and answers all orders with Cancelled
  SnapshotWriter(const SnapshotWriter&) = delete;
  SnapshotWriter& operator=(const SnapshotWriter&) = delete;

  // Orders a snapshot. Never blocks. A second order of a shard replaces a waiting order, which is
  // answered Aborted. A first order that is being written continues, and the second order follows.
  // Returns ResourceExhausted if orders_max orders wait. In this case `done` is not called.
  absl::Status Submit(Order order);
  // Cancels the orders of a shard that is no longer held, or of all shards of a job: waiting orders
  // are answered Cancelled, and a write in progress ends after at most 1 MiB.
  void Cancel(JobUid job, std::optional<ShardId> shard = std::nullopt);

  std::size_t waiting() const { return orders_.waiting(); }
  // Returns the bytes of the cut in progress.
  std::uint64_t held_bytes() const { return held_bytes_.load(std::memory_order_relaxed); }

 private:
  using Orders = OrderQueue<Order>;
  void Perform(Orders::Entry entry);
  using Arrival = runtime::Arrival<ShardCut>;
  absl::StatusOr<DurableCut> TakeAndWrite(const Order& order);
  absl::StatusOr<ShardCut> Take(const Order& order);
  // Ends the wait for a cut that is unwanted.
  void EndUnwantedCut() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  metrics::Counter &bytes_written_, &durable_, &unchanged_, &dropped_, &failed_;
  metrics::Histogram& seconds_;
  metrics::Limit orders_limit_, held_limit_;
  std::atomic<std::uint64_t> held_bytes_{0};

  Mutex mu_;
  // Shared with the function that the shard's executor gets. Null if the writer waits for no cut.
  std::shared_ptr<Arrival> arrival_ ABSL_GUARDED_BY(mu_);
  // The newest durable file of each shard. An unchanged shard is not written again.
  struct Last {
    std::string folder, plan_fingerprint;
    DurableCut cut;
  };
  std::map<Orders::Key, Last> last_ ABSL_GUARDED_BY(mu_);
  Orders orders_;  // this is the last member, because its thread uses the others
};

}  // namespace evergrad::ps_server

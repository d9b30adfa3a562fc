// Images of stopped shards, in memory. The server to which a shard moves reads the image of the
// shard (LEDGER line 22).
//
// An image has the bytes of the shard's file (common/snapshot/FORMAT.md). One I/O thread makes one
// image at a time. The shard of an image has stopped, so the image stays equal to the shard's
// state. Thread-safe. Callbacks run on the I/O thread, or on the thread that calls Submit, Drop or
// the destructor, without a lock held.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/fault/failpoints.h"
#include "common/metrics/metrics.h"
#include "common/tensor/tensor.h"
#include "ps_server/snapshot/cut_file.h"
#include "ps_server/snapshot/order_queue.h"

namespace evergrad::ps_server {

// The largest piece of an image in one request and answer. The size is below 1 MiB, the smallest
// `budget_bytes_max` of a server.
inline constexpr std::uint64_t kImagePieceBytesMax = 512 * 1024;

class Images {
 public:
  struct Options {
    metrics::Registry* registry = nullptr;  // Outlives the images.
    // Has the failpoints move.stopped (for each image that is made) and move.read (for each piece
    // that is read). May be null.
    fault::Failpoints* failpoints = nullptr;
    std::uint64_t bytes_max = 1ull << 30;  // limit for all images together
  };
  struct Order {
    ShardCut cut;
    std::string plan_fingerprint;
    // Called exactly once, with the digest of the image, Cancelled, or the failpoint's error.
    std::function<void(absl::StatusOr<snapshot::FileDigest>)> done;
  };

  explicit Images(Options options);
  ~Images();  // Stops the image in progress after at most 1 MiB; open orders get Cancelled.
  Images(const Images&) = delete;
  Images& operator=(const Images&) = delete;

  // Orders the image of a stopped shard. Never blocks. If the image of this shard and epoch exists
  // already, `done` is called at once. Returns ResourceExhausted if the image alone exceeds
  // bytes_max. Returns Unavailable if the image does not fit beside the other images; a later call
  // may succeed. After an error `done` is not called.
  absl::Status Submit(Order order);
  // Returns bytes [offset, offset + bytes) of an image, or fewer at its end. The bytes live as long
  // as the `owner` of the result. Returns NotFound if there is no such image, and InvalidArgument
  // for an offset beyond the end, for 0 bytes, and for more than kImagePieceBytesMax bytes.
  absl::StatusOr<tensor::SharedBytes> Read(JobUid job, ShardId shard, ShardEpoch epoch,
                                           std::uint64_t offset, std::uint64_t bytes) const;
  // Ends the move of the shard, or of all shards of a job: images are freed, and orders are
  // answered Cancelled.
  void Drop(JobUid job, std::optional<ShardId> shard = std::nullopt);

  std::uint64_t bytes() const;  // size of all images that exist or are ordered

 private:
  using Key = std::tuple<JobUid, ShardId, ShardEpoch>;
  struct Image {  // shared with the answers in flight
    std::vector<std::byte> bytes;
    snapshot::FileDigest digest;
  };
  using Orders = OrderQueue<Order>;
  void Perform(Order order);
  static Key KeyOf(const ShardCut& cut);
  std::shared_ptr<const Image> Find(const Key& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetBytes(std::uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  metrics::Limit limit_;

  mutable Mutex mu_;
  std::uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<Key, std::shared_ptr<const Image>> images_ ABSL_GUARDED_BY(mu_);
  // Bounded by bytes_max. This is the last member, because its thread uses the others.
  Orders orders_;
};

}  // namespace evergrad::ps_server

// Images of stopped shards, in memory: what another server reads when a shard is moved to it
// (LEDGER line 22).
//
// An image is the bytes of the shard's file (common/snapshot/FORMAT.md), made on one I/O thread of
// its own, one at a time. The shard it is of has stopped, so the image is its state until it is
// dropped. Thread-safe. Callbacks run on the thread of the images (or the caller's of Submit, Drop
// and the destructor) without a lock held.
#pragma once

#include <deque>
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
#include "common/runtime/executor.h"
#include "common/tensor/tensor.h"
#include "ps_server/snapshot/cut_file.h"

namespace evergrad::ps_server {

// One piece of an image, as it is asked for and answered: below the smallest budget of a server.
inline constexpr std::uint64_t kImagePieceBytesMax = 512 * 1024;

class Images {
 public:
  struct Options {
    metrics::Registry* registry = nullptr;  // Outlives the images.
    fault::Failpoints* failpoints =
        nullptr;  // May be null: move.stopped (each image made), move.read (each piece asked for)
    std::uint64_t bytes_max = 1ull << 30;  // of all images there are
  };
  struct Order {
    ShardCut cut;
    std::string plan_fingerprint;
    // Exactly once: what the image is, or Cancelled, or the failpoint's error.
    std::function<void(absl::StatusOr<snapshot::FileDigest>)> done;
  };

  explicit Images(Options options);
  ~Images();  // The one being made ends within a MiB; orders are answered Cancelled.
  Images(const Images&) = delete;
  Images& operator=(const Images&) = delete;

  // Never blocks. An image of that shard and epoch that is there is the answer at once.
  // Unavailable: there is no room beside the others, later there is; ResourceExhausted: it is too
  // large by itself. Then `done` is not called.
  absl::Status Submit(Order order);
  // Bytes [offset, offset + bytes) of an image, fewer at its end; they live as long as `owner`.
  // NotFound: there is no such image (any more). InvalidArgument: beyond its end, none, or more
  // than kImagePieceBytesMax.
  absl::StatusOr<tensor::SharedBytes> Read(JobUid job, ShardId shard, ShardEpoch epoch,
                                           std::uint64_t offset, std::uint64_t bytes) const;
  // The shard, or all of a job, is not to be moved any more: images go, orders are answered
  // Cancelled.
  void Drop(JobUid job, std::optional<ShardId> shard = std::nullopt);

  std::uint64_t bytes() const;  // of all images, and of those to be made

 private:
  using Key = std::tuple<JobUid, ShardId, ShardEpoch>;
  struct Image {  // shared with the answers that are on their way
    std::vector<std::byte> bytes;
    snapshot::FileDigest digest;
  };
  void Run();
  void Release(std::uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  metrics::Limit limit_;

  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Order> queue_ ABSL_GUARDED_BY(mu_);
  std::optional<Key> current_ ABSL_GUARDED_BY(mu_);
  bool current_dropped_ ABSL_GUARDED_BY(mu_) = false;
  std::map<Key, std::shared_ptr<const Image>> images_ ABSL_GUARDED_BY(mu_);
  std::optional<runtime::Thread> thread_;  // last: joined first
};

}  // namespace evergrad::ps_server

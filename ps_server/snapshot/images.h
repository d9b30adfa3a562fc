// Images of stopped shards, in memory. Another server reads an image when a shard moves to it
// (LEDGER line 22).
//
// An image is the bytes of the shard's file (common/snapshot/FORMAT.md). A separate I/O thread
// makes the images, one at a time. The shard has stopped, so the image is its state until the image
// is dropped. Thread-safe. Callbacks run without a lock on the thread of the images, or on the
// caller's thread of Submit, Drop and the destructor.
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

// The largest piece of an image in one request. It is below the smallest budget of a server.
inline constexpr std::uint64_t kImagePieceBytesMax = 512 * 1024;

class Images {
 public:
  struct Options {
    metrics::Registry* registry = nullptr;    // Outlives the images.
    fault::Failpoints* failpoints = nullptr;  // may be null; the points are move.stopped (each
                                              // image made) and move.read (each requested piece)
    std::uint64_t bytes_max = 1ull << 30;     // limit of all images together
  };
  struct Order {
    ShardCut cut;
    std::string plan_fingerprint;
    // Called exactly once: with the digest of the image, with Cancelled, or with the failpoint's
    // error.
    std::function<void(absl::StatusOr<snapshot::FileDigest>)> done;
  };

  explicit Images(Options options);
  ~Images();  // the image in progress ends within a MiB; orders are answered Cancelled
  Images(const Images&) = delete;
  Images& operator=(const Images&) = delete;

  // Never blocks. An existing image of that shard and epoch is the answer at once. Unavailable if
  // there is no capacity beside the other images now, but there will be later. ResourceExhausted if
  // the image alone is too large. After an error `done` is not called.
  absl::Status Submit(Order order);
  // Returns bytes [offset, offset + bytes) of an image, fewer at its end. They live as long as
  // `owner`. NotFound if there is no such image (any more). InvalidArgument for bytes beyond the
  // end of the image, for none, and for more than kImagePieceBytesMax.
  absl::StatusOr<tensor::SharedBytes> Read(JobUid job, ShardId shard, ShardEpoch epoch,
                                           std::uint64_t offset, std::uint64_t bytes) const;
  // The shard, or every shard of a job, will not be moved any more. Its images are dropped, and its
  // orders are answered Cancelled.
  void Drop(JobUid job, std::optional<ShardId> shard = std::nullopt);

  std::uint64_t bytes() const;  // size of all images, and of those to be made

 private:
  using Key = std::tuple<JobUid, ShardId, ShardEpoch>;
  struct Image {  // shared with the answers in flight
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
  std::optional<runtime::Thread> thread_;  // last, so that it is joined first
};

}  // namespace evergrad::ps_server

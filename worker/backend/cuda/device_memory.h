// Memory of a device and page-locked memory of its host, as the homes of buffers.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/tensor/tensor.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/block_cache.h"
#include "worker/backend/cuda/cuda_abi.h"

namespace evergrad::worker {

// The device's, by a BlockCache whose streams are the lanes. One thread: the one that computes. It
// outlives the buffers; `context` outlives it.
class DeviceMemory final : public tensor::BufferHome {
 public:
  DeviceMemory(const EgCudaApi* api, EgContext* context);
  ~DeviceMemory() override;
  // ResourceExhausted: "no memory: what=… bytes=… free=…", with what is in use and cached.
  static absl::StatusOr<tensor::AlignedBuffer> Allocate(const std::shared_ptr<DeviceMemory>& self,
                                                        std::size_t bytes, absl::string_view what);
  void TakeBack(std::byte* data, std::size_t bytes) override;
  // A copy on `lane` will use this piece of a buffer: it is not given out again before the copy is
  // done. The first one waits for what kCompute has been asked for so far, which may still use the
  // buffer that lay there before.
  void UsedBy(Lane lane, const void* piece);
  MemoryUse use(bool with_free = true) const;  // `free` is the driver's answer
  const BlockCache& cache() const { return cache_; }

 private:
  void Poll();

  const EgCudaApi* const api_;
  EgContext* const context_;
  BlockCache cache_;
  struct Buffer {
    std::uint64_t bytes = 0;
    bool lanes[kLanes] = {};
  };
  std::map<std::uint64_t, Buffer> buffers_;  // those that are out
  std::uint64_t used_ = 0, peak_ = 0;
  BlockCache::Mark marks_[kLanes] = {};
  std::deque<std::pair<BlockCache::Mark, EgEvent*>> pending_[kLanes];
};

// Page-locked memory. To have it from the driver, or to give it back, is slow and may wait for the
// device, so what comes back is kept for the next of its size: with what is out never more than was
// out at once before, or kKeptMax if that is more. Then the oldest goes. What the driver refused,
// or more, it is asked for again after kRefusedMax times, or once some was given back to it: a
// refusal may be as slow.
class PinnedMemory final : public HostMemory,
                           public tensor::BufferHome,
                           public std::enable_shared_from_this<PinnedMemory> {
 public:
  static constexpr std::uint64_t kKeptMax = 256ull << 20;
  static constexpr std::uint32_t kRefusedMax = 1000;

  explicit PinnedMemory(const EgCudaApi* api) : api_(api) {}
  ~PinnedMemory() override;
  absl::StatusOr<tensor::AlignedBuffer> Allocate(std::size_t bytes) override;
  void TakeBack(std::byte* data, std::size_t bytes) override;
  bool Holds(const std::byte* data, std::size_t bytes) const;
  // Pages, and above 64 KiB eighths of a power of two: like sizes share.
  static std::size_t Rounded(std::size_t bytes);

 private:
  struct Kept {
    std::byte* data;
    std::uint64_t age;
  };
  // Takes out of what is kept, oldest first, until `more` can be added: who calls gives it back to
  // the driver.
  std::vector<std::byte*> MakeRoom(std::uint64_t more) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<std::byte*> TakeKept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);  // all of it
  void Release(const std::vector<std::byte*>& gone);                      // without the lock

  const EgCudaApi* const api_;
  mutable Mutex mu_;
  std::map<const std::byte*, std::size_t> out_ ABSL_GUARDED_BY(mu_);
  std::multimap<std::size_t, Kept> kept_ ABSL_GUARDED_BY(mu_);
  std::uint64_t out_bytes_ ABSL_GUARDED_BY(mu_) = 0, out_peak_ ABSL_GUARDED_BY(mu_) = 0,
                           kept_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::uint64_t age_ ABSL_GUARDED_BY(mu_) = 0;
  std::size_t refused_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // the least that the driver refused …
  std::uint32_t refused_ ABSL_GUARDED_BY(mu_) =
      0;  // … and how often it is not asked for so much from now on
  std::string refused_because_ ABSL_GUARDED_BY(mu_);
};

}  // namespace evergrad::worker

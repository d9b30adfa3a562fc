// Device memory and page-locked host memory. Both classes own the memory of buffers.
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

// Device memory from a BlockCache whose streams are the queues. Used on the compute thread only.
// The object outlives its buffers; `context` outlives the object.
class DeviceMemory final : public tensor::BufferHome {
 public:
  DeviceMemory(const EgCudaApi* api, EgContext* context);
  ~DeviceMemory() override;
  // Returns ResourceExhausted: "out of memory: what=… bytes=… free=…", with the bytes in use and
  // cached.
  static absl::StatusOr<tensor::AlignedBuffer> Allocate(const std::shared_ptr<DeviceMemory>& self,
                                                        std::size_t bytes, absl::string_view what);
  void TakeBack(std::byte* data, std::size_t bytes) override;
  // Declares that a copy on `queue` will use this piece of a buffer, so the buffer is not reused
  // before the copy is done. The first such copy waits for the current work of kCompute, which may
  // still use the previous buffer at the same address.
  void UsedBy(DeviceQueue queue, const void* piece);
  MemoryUse use(bool with_free = true) const;  // with_free: asks the driver for `free`
  const BlockCache& cache() const { return cache_; }

 private:
  void Poll();

  const EgCudaApi* const api_;
  EgContext* const context_;
  BlockCache cache_;
  struct Buffer {
    std::uint64_t bytes = 0;
    bool queues[kQueues] = {};
  };
  std::map<std::uint64_t, Buffer> buffers_;  // buffers in use
  std::uint64_t used_ = 0, peak_ = 0;
  BlockCache::Mark marks_[kQueues] = {};
  std::deque<std::pair<BlockCache::Mark, EgEvent*>> pending_[kQueues];
};

// Page-locked memory. Allocating and freeing such memory in the driver is slow and may wait for the
// device. Therefore returned memory is kept for later requests of its size. Kept memory and memory
// in use together never exceed the largest amount that was in use at once, or kKeptMax if that is
// more; above this limit the oldest kept memory is freed. A refusal by the driver may be slow, too.
// After the driver has refused a size, that size or a larger one is requested again only after
// kRefusedMax attempts, or once some memory was freed.
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
  // Returns the size rounded up to pages, and above 64 KiB to eighths of a power of two, so that
  // similar sizes share memory.
  static std::size_t Rounded(std::size_t bytes);

 private:
  struct Kept {
    std::byte* data;
    std::uint64_t age;
  };
  // Removes kept memory, oldest first, until `more` bytes can be added. The caller frees the
  // removed memory in the driver.
  std::vector<std::byte*> MakeRoom(std::uint64_t more) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<std::byte*> TakeKept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);  // removes all kept memory
  void Release(const std::vector<std::byte*>& gone);                      // called without the lock

  const EgCudaApi* const api_;
  mutable Mutex mu_;
  std::map<const std::byte*, std::size_t> out_ ABSL_GUARDED_BY(mu_);
  std::multimap<std::size_t, Kept> kept_ ABSL_GUARDED_BY(mu_);
  std::uint64_t out_bytes_ ABSL_GUARDED_BY(mu_) = 0, out_peak_ ABSL_GUARDED_BY(mu_) = 0,
                           kept_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::uint64_t age_ ABSL_GUARDED_BY(mu_) = 0;
  // The smallest size that the driver refused.
  std::size_t refused_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // While this number is above 0, a request of at least refused_bytes_ is refused without a call of
  // the driver, and lowers the number by 1.
  std::uint32_t refused_ ABSL_GUARDED_BY(mu_) = 0;
  std::string refused_because_ ABSL_GUARDED_BY(mu_);
};

}  // namespace evergrad::worker

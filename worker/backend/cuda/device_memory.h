// Memory of a device and page-locked memory of its host, as the homes of buffers.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/tensor/tensor.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/block_cache.h"
#include "worker/backend/cuda/cuda_abi.h"

namespace evergrad::worker {

// The device's, by a BlockCache whose streams are the lanes. One thread: the one that computes. It outlives the buffers; `context` outlives it.
class DeviceMemory final : public tensor::BufferHome {
 public:
  DeviceMemory(const EgCudaApi* api, EgContext* context);
  ~DeviceMemory() override;
  // ResourceExhausted: "no memory: what=… bytes=… free=…", with what is in use and cached.
  static absl::StatusOr<tensor::AlignedBuffer> Allocate(const std::shared_ptr<DeviceMemory>& self, std::size_t bytes, absl::string_view what);
  void TakeBack(std::byte* data, std::size_t bytes) override;
  // A copy on `lane` will use this piece of a buffer: it is not given out again before the copy is done. The first one waits for what kCompute has
  // been asked for so far, which may still use the buffer that lay there before.
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

// Page-locked memory. Thread-safe; shared with its buffers. What comes back is kept for the next of its size, up to kKeptMax.
class PinnedMemory final : public tensor::BufferHome {
 public:
  static constexpr std::uint64_t kKeptMax = 256ull << 20;

  explicit PinnedMemory(const EgCudaApi* api) : api_(api) {}
  ~PinnedMemory() override;
  static absl::StatusOr<tensor::AlignedBuffer> Allocate(const std::shared_ptr<PinnedMemory>& self, std::size_t bytes);
  void TakeBack(std::byte* data, std::size_t bytes) override;
  bool Holds(const std::byte* data, std::size_t bytes) const;

 private:
  static std::size_t Rounded(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
  const EgCudaApi* const api_;
  mutable Mutex mu_;
  std::map<const std::byte*, std::size_t> out_ ABSL_GUARDED_BY(mu_);
  std::multimap<std::size_t, std::byte*> kept_ ABSL_GUARDED_BY(mu_);
  std::uint64_t kept_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace evergrad::worker

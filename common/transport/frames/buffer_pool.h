// Memory for received frames. Large buffers are reused, so that a push of 64 MB does not
// begin with 16,384 page faults. Unlike on the heap, the retained memory is bounded.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/tensor/tensor.h"

namespace evergrad::transport {

class BufferPool final : public tensor::BufferHome,
                         public std::enable_shared_from_this<BufferPool> {
 public:
  // `bytes_max` is the intended limit of memory in use, a server's budget. Returned buffers are
  // retained while all buffers, retained and in use, fit into bytes_max plus an eighth. The eighth
  // is the part that Capacity may add to the size of a buffer. Up to half of `bytes_max` is
  // retained in any case. Beyond these limits the oldest buffers are freed.
  explicit BufferPool(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}
  ~BufferPool() override;

  // Returns uninitialized memory. Memory below kPooledBytesMin comes from the heap. Throws
  // std::bad_alloc.
  tensor::AlignedBuffer Take(std::size_t bytes);
  void TakeBack(std::byte* data, std::size_t bytes) override;

  std::uint64_t free_bytes() const;
  std::uint64_t out_bytes() const;  // capacity of the buffers in use that are not on the heap

  static constexpr std::size_t kPooledBytesMin = 256u << 10;
  // Returns the number of bytes that are mapped for a buffer of `bytes`: rounded up to an eighth of
  // a power of two, so that similar sizes share buffers and at most an eighth is wasted.
  static std::size_t Capacity(std::size_t bytes);

 private:
  struct Free {
    std::byte* data;
    std::size_t capacity;
  };

  // Removes the buffers that the caller must unmap. The caller unmaps them after it has released
  // the lock, because unmapping is slow.
  std::vector<Free> TakeSurplus() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void Unmap(const std::vector<Free>& surplus);

  const std::uint64_t bytes_max_;
  mutable Mutex mu_;
  std::deque<Free> free_ ABSL_GUARDED_BY(mu_);  // oldest first; searched from the newest
  std::uint64_t free_bytes_ ABSL_GUARDED_BY(mu_) = 0, out_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace evergrad::transport

// Memory for received frames: large buffers are kept and used again, so that a push of 64 MB does
// not begin with 16,384 page faults, and so that what is kept is bounded (the heap would keep what
// it likes). Thread-safe.
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
  // `bytes_max`: what is meant to be out at once, a server's budget. What has come back is kept
  // while it and what is out fit into that and its eighth (Capacity), and half of `bytes_max`
  // whatever is out; beyond, the oldest goes.
  explicit BufferPool(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}
  ~BufferPool() override;

  // Not initialised. Below kPooledBytesMin it is the heap's. Throws std::bad_alloc.
  tensor::AlignedBuffer Take(std::size_t bytes);
  void TakeBack(std::byte* data, std::size_t bytes) override;

  std::uint64_t free_bytes() const;
  std::uint64_t out_bytes() const;  // by capacity, of buffers that are not the heap's

  static constexpr std::size_t kPooledBytesMin = 256u << 10;
  // What is really mapped for `bytes`: in eighths of a power of two, so that like sizes share and
  // at most an eighth is wasted.
  static std::size_t Capacity(std::size_t bytes);

 private:
  struct Free {
    std::byte* data;
    std::size_t capacity;
  };

  // What is to be unmapped, outside of the lock: giving 64 MB back takes a while.
  std::vector<Free> TakeSurplus() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void Unmap(const std::vector<Free>& surplus);

  const std::uint64_t bytes_max_;
  mutable Mutex mu_;
  std::deque<Free> free_ ABSL_GUARDED_BY(mu_);  // Oldest first, searched from the newest.
  std::uint64_t free_bytes_ ABSL_GUARDED_BY(mu_) = 0, out_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace evergrad::transport

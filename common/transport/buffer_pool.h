// Memory for received frames: large buffers are kept and used again, so that a push of 64 MB does not begin with 16,384 page
// faults, and so that what is kept is bounded (the heap would keep what it likes). Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "common/base/mutex.h"
#include "common/tensor/tensor.h"

namespace evergrad::transport {

class BufferPool final : public tensor::BufferHome, public std::enable_shared_from_this<BufferPool> {
 public:
  // At most `free_bytes_max` lie unused; what is returned beyond that pushes the oldest out.
  explicit BufferPool(std::uint64_t free_bytes_max) : free_bytes_max_(free_bytes_max) {}
  ~BufferPool() override;

  // Not initialised. Below kPooledBytesMin it is the heap's.
  tensor::AlignedBuffer Take(std::size_t bytes);
  void TakeBack(std::byte* data, std::size_t bytes) override;

  std::uint64_t free_bytes() const;

  static constexpr std::size_t kPooledBytesMin = 256u << 10;
  // What is really mapped for `bytes`: in eighths of a power of two, so that like sizes share and at most an eighth is wasted.
  static std::size_t Capacity(std::size_t bytes);

 private:
  struct Free {
    std::byte* data;
    std::size_t capacity;
  };

  const std::uint64_t free_bytes_max_;
  mutable Mutex mu_;
  std::deque<Free> free_ ABSL_GUARDED_BY(mu_);  // Oldest first: a few dozen at most, searched from the newest.
  std::uint64_t free_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace evergrad::transport

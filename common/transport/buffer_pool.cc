#include "common/transport/buffer_pool.h"

#include <sys/mman.h>

#include <bit>
#include <new>
#include <vector>

#include "common/base/checked_math.h"

namespace evergrad::transport {
namespace {

constexpr std::size_t kHugePageBytes = 2u << 20;

std::byte* Map(std::size_t capacity) {
  // Huge pages want their own alignment: map more and give the edges back.
  const std::size_t extra = capacity >= kHugePageBytes ? kHugePageBytes : 0;
  void* mapped = mmap(nullptr, capacity + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<std::byte*>(mapped);
  if (extra == 0) return begin;
  auto* aligned = reinterpret_cast<std::byte*>(RoundUp(reinterpret_cast<std::uintptr_t>(begin), kHugePageBytes));
  const auto before = static_cast<std::size_t>(aligned - begin);
  if (before > 0) munmap(begin, before);
  if (before < extra) munmap(aligned + capacity, extra - before);
  madvise(aligned, capacity, MADV_HUGEPAGE);  // A wish: a refusal costs speed only.
  return aligned;
}

}  // namespace

std::size_t BufferPool::Capacity(std::size_t bytes) { return RoundUp(bytes, std::bit_floor(bytes) / 8); }

BufferPool::~BufferPool() {
  for (const Free& free : free_) munmap(free.data, free.capacity);
}

tensor::AlignedBuffer BufferPool::Take(std::size_t bytes) {
  if (bytes < kPooledBytesMin) return tensor::AlignedBuffer(bytes);
  const std::size_t capacity = Capacity(bytes);
  {
    MutexLock lock(&mu_);
    for (auto it = free_.rbegin(); it != free_.rend(); ++it) {
      if (it->capacity != capacity) continue;
      std::byte* data = it->data;
      free_.erase(std::next(it).base());
      free_bytes_ -= capacity;
      return tensor::AlignedBuffer(data, bytes, shared_from_this());
    }
  }
  return tensor::AlignedBuffer(Map(capacity), bytes, shared_from_this());
}

void BufferPool::TakeBack(std::byte* data, std::size_t bytes) {
  std::vector<Free> unmapped;  // Outside of the lock: giving 64 MB back takes a while.
  {
    MutexLock lock(&mu_);
    free_.push_back({data, Capacity(bytes)});
    free_bytes_ += free_.back().capacity;
    while (free_bytes_ > free_bytes_max_) {
      unmapped.push_back(free_.front());
      free_bytes_ -= free_.front().capacity;
      free_.pop_front();
    }
  }
  for (const Free& free : unmapped) munmap(free.data, free.capacity);
}

std::uint64_t BufferPool::free_bytes() const {
  MutexLock lock(&mu_);
  return free_bytes_;
}

}  // namespace evergrad::transport

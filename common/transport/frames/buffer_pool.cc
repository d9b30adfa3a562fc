#include "common/transport/frames/buffer_pool.h"

#include <sys/mman.h>

#include <bit>
#include <new>
#include <utility>

#include "common/base/checked_math.h"

namespace evergrad::transport {
namespace {

constexpr std::size_t kHugePageBytes = 2u << 20;

// Maps anonymous memory. Returns nullptr if the system is out of memory.
std::byte* Map(std::size_t capacity) {
  // Huge pages need a larger alignment. Therefore more memory is mapped, and the surplus at both
  // ends is unmapped.
  const std::size_t extra = capacity >= kHugePageBytes ? kHugePageBytes : 0;
  void* mapped =
      mmap(nullptr, capacity + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(mapped);
  if (extra == 0) return begin;
  auto* aligned = reinterpret_cast<std::byte*>(
      RoundUp(reinterpret_cast<std::uintptr_t>(begin), kHugePageBytes));
  const auto before = static_cast<std::size_t>(aligned - begin);
  if (before > 0) munmap(begin, before);
  if (before < extra) munmap(aligned + capacity, extra - before);
  madvise(aligned, capacity,
          MADV_HUGEPAGE);  // only a hint: a refusal by the kernel costs only speed
  return aligned;
}

}  // namespace

std::size_t BufferPool::Capacity(std::size_t bytes) {
  return RoundUp(bytes, std::bit_floor(bytes) / 8);
}

BufferPool::~BufferPool() {
  for (const Free& free : free_) munmap(free.data, free.capacity);
}

tensor::AlignedBuffer BufferPool::Take(std::size_t bytes) {
  if (bytes < kPooledBytesMin) return tensor::AlignedBuffer(bytes);
  const std::size_t capacity = Capacity(bytes);
  std::vector<Free> surplus;
  {
    MutexLock lock(&mu_);
    out_bytes_ += capacity;
    for (auto it = free_.rbegin(); it != free_.rend(); ++it) {
      if (it->capacity != capacity) continue;
      std::byte* data = it->data;
      free_.erase(std::next(it).base());
      free_bytes_ -= capacity;
      return tensor::AlignedBuffer(data, bytes, shared_from_this());
    }
    surplus = TakeSurplus();
  }
  Unmap(surplus);
  std::byte* const data = Map(capacity);
  if (data == nullptr) {
    MutexLock lock(&mu_);
    out_bytes_ -= capacity;
    throw std::bad_alloc();
  }
  return tensor::AlignedBuffer(data, bytes, shared_from_this());
}

void BufferPool::TakeBack(std::byte* data, std::size_t bytes) {
  std::vector<Free> surplus;
  {
    MutexLock lock(&mu_);
    free_.push_back({data, Capacity(bytes)});
    free_bytes_ += free_.back().capacity;
    out_bytes_ -= free_.back().capacity;
    surplus = TakeSurplus();
  }
  Unmap(surplus);
}

std::vector<BufferPool::Free> BufferPool::TakeSurplus() {
  std::vector<Free> surplus;
  while (free_bytes_ > bytes_max_ / 2 && out_bytes_ + free_bytes_ > bytes_max_ + bytes_max_ / 8) {
    surplus.push_back(free_.front());
    free_bytes_ -= free_.front().capacity;
    free_.pop_front();
  }
  return surplus;
}

void BufferPool::Unmap(const std::vector<Free>& surplus) {
  for (const Free& free : surplus) munmap(free.data, free.capacity);
}

std::uint64_t BufferPool::free_bytes() const {
  MutexLock lock(&mu_);
  return free_bytes_;
}

std::uint64_t BufferPool::out_bytes() const {
  MutexLock lock(&mu_);
  return out_bytes_;
}

}  // namespace evergrad::transport

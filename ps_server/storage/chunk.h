// Reference-counted blocks of floats: the values and optimizer state of dense shards.
//
// A pull, a snapshot or a move takes references. An apply writes in place, or into a pooled block
// if a reader holds a reference to the old one. So a reader never sees half an update, and never
// copies.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/mutex.h"

namespace evergrad::ps_server::storage {

// 256 KiB: half of an L2 cache, one transport message, and 256 pieces for the largest shard.
inline constexpr std::size_t kChunkFloats = 64 * 1024;
inline constexpr std::size_t kChunkBytes = kChunkFloats * sizeof(float);

class ChunkPool;
class ChunkRef;

// Header and floats in one 64-byte aligned allocation. Only ChunkRef touches the count.
class alignas(64) Chunk {
 public:
  float* data() { return reinterpret_cast<float*>(this + 1); }
  const float* data() const { return reinterpret_cast<const float*>(this + 1); }
  std::size_t size() const { return size_; }

 private:
  friend class ChunkRef;
  friend class ChunkPool;
  explicit Chunk(std::uint32_t size) : size_(size) {}
  static Chunk* Allocate(std::size_t floats);  // nullptr: out of memory
  static void Free(Chunk* chunk);

  std::atomic<std::uint32_t> refs_{1};
  const std::uint32_t size_;
  std::shared_ptr<ChunkPool>
      pool_;  // Shared by every chunk that returns to it; null for a chunk that is simply freed.
};

// An owner of one chunk. Copying takes a reference; thread-safe between copies, as shared_ptr is.
// It is no shared_ptr, because unique() must be an acquire load: the reader's last access happens
// before the owner's next write.
class ChunkRef {
 public:
  ChunkRef() = default;
  // Takes a spare block of this size from `pool`, else from the heap (`pool` may be null). Contents
  // are not set. The reference is empty if memory is out.
  static ChunkRef New(std::size_t floats, const std::shared_ptr<ChunkPool>& pool);
  ChunkRef(const ChunkRef& other) : chunk_(other.chunk_) {
    if (chunk_ != nullptr) chunk_->refs_.fetch_add(1, std::memory_order_relaxed);
  }
  ChunkRef(ChunkRef&& other) noexcept : chunk_(std::exchange(other.chunk_, nullptr)) {}
  ChunkRef& operator=(ChunkRef other) noexcept {
    std::swap(chunk_, other.chunk_);
    return *this;
  }
  ~ChunkRef() { Release(); }

  explicit operator bool() const { return chunk_ != nullptr; }
  bool unique() const { return chunk_->refs_.load(std::memory_order_acquire) == 1; }
  Chunk* operator->() const { return chunk_; }
  friend bool operator==(const ChunkRef&, const ChunkRef&) = default;

 private:
  void Release();
  Chunk* chunk_ = nullptr;
};

// Spare full-size blocks, so that writing out of place costs no page faults. Thread-safe: a
// reader's last reference may end on a transport thread. Bounded: above `bytes_max` a returned
// block is freed.
class ChunkPool {
 public:
  explicit ChunkPool(std::uint64_t bytes_max) : blocks_max_(bytes_max / kChunkBytes) {}
  ~ChunkPool();
  ChunkPool(const ChunkPool&) = delete;
  ChunkPool& operator=(const ChunkPool&) = delete;
  // Allocates and touches spare blocks until there are `bytes` of them, at most the bound, so that
  // their next user pays for no page fault. Slow, so never called on an executor. Stops early if
  // memory is out.
  void Warm(std::uint64_t bytes);
  std::uint64_t bytes() const;    // of spare blocks
  std::uint64_t refused() const;  // blocks freed because of the bound

 private:
  friend class ChunkRef;
  Chunk* Take();                // nullptr: there is no spare block
  bool GiveBack(Chunk* chunk);  // false: the pool is full

  const std::uint64_t blocks_max_;
  mutable Mutex mu_;
  std::vector<Chunk*> spare_ ABSL_GUARDED_BY(mu_);
  std::uint64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace evergrad::ps_server::storage

// Reference-counted blocks of floats: the values and optimizer state of dense shards.
//
// A pull, a snapshot or a move takes references. An apply writes in place, or into a block of the
// pool if a reader holds a reference to the old block. Therefore a reader never sees a part of an
// update, and needs no copy.
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

// A chunk of 256 KiB fills half of an L2 cache and is sent as one transport message. The largest
// shard has 256 chunks.
inline constexpr std::size_t kChunkFloats = 64 * 1024;
inline constexpr std::size_t kChunkBytes = kChunkFloats * sizeof(float);

class ChunkPool;
class ChunkRef;

// Header and floats in one allocation that is aligned to 64 bytes. Only ChunkRef changes the
// reference count.
class alignas(64) Chunk {
 public:
  float* data() { return reinterpret_cast<float*>(this + 1); }
  const float* data() const { return reinterpret_cast<const float*>(this + 1); }
  std::size_t size() const { return size_; }

 private:
  friend class ChunkRef;
  friend class ChunkPool;
  explicit Chunk(std::uint32_t size) : size_(size) {}
  static Chunk* Allocate(std::size_t floats);  // returns nullptr if memory is exhausted
  static void Free(Chunk* chunk);

  std::atomic<std::uint32_t> refs_{1};
  const std::uint32_t size_;
  // The pool to which the last release returns the chunk. All chunks of a pool share it. If null,
  // the last release frees the memory of the chunk.
  std::shared_ptr<ChunkPool> pool_;
};

// A counted reference to one chunk. Different copies may be used on different threads, as with
// shared_ptr. ChunkRef is not a shared_ptr, because unique() must be an acquire load, so that the
// reader's last access happens before the owner's next write.
class ChunkRef {
 public:
  ChunkRef() = default;
  // Returns a block of this size from `pool`, or from the heap if the pool is null or has no spare
  // block. The contents are not initialised. The reference is empty if memory is exhausted.
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

// Spare full-size blocks, so that writing beside the old values causes no page faults. Thread-safe,
// because the last reference to a block may be released on a transport thread. The pool is bounded:
// if it holds `bytes_max` bytes, a returned block is freed.
class ChunkPool {
 public:
  explicit ChunkPool(std::uint64_t bytes_max) : blocks_max_(bytes_max / kChunkBytes) {}
  ~ChunkPool();
  ChunkPool(const ChunkPool&) = delete;
  ChunkPool& operator=(const ChunkPool&) = delete;
  // Adds spare blocks until the pool holds `bytes` bytes, or `bytes_max` if that is less. The
  // function writes to the pages of the blocks, so that the next user of a block causes no page
  // fault. The function is slow, so it is never called on an executor. It stops early if memory is
  // exhausted.
  void Warm(std::uint64_t bytes);
  std::uint64_t bytes() const;    // size of the spare blocks
  std::uint64_t refused() const;  // number of blocks that were freed because of the bound

 private:
  friend class ChunkRef;
  Chunk* Take();                // returns nullptr if there is no spare block
  bool GiveBack(Chunk* chunk);  // returns false if the pool is full

  const std::uint64_t blocks_max_;
  mutable Mutex mu_;
  std::vector<Chunk*> spare_ ABSL_GUARDED_BY(mu_);
  std::uint64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace evergrad::ps_server::storage

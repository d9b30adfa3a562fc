#include "ps_server/storage/chunk.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace evergrad::ps_server::storage {

Chunk* Chunk::Allocate(std::size_t floats) {
  void* memory = ::operator new(sizeof(Chunk) + floats * sizeof(float),
                                std::align_val_t(alignof(Chunk)), std::nothrow);
  return memory == nullptr ? nullptr : new (memory) Chunk(static_cast<std::uint32_t>(floats));
}

void Chunk::Free(Chunk* chunk) {
  chunk->~Chunk();
  ::operator delete(chunk, std::align_val_t(alignof(Chunk)));
}

ChunkRef ChunkRef::New(std::size_t floats, const std::shared_ptr<ChunkPool>& pool) {
  const bool pooled = pool != nullptr && floats == kChunkFloats;
  Chunk* chunk = pooled ? pool->Take() : nullptr;
  if (chunk == nullptr) chunk = Chunk::Allocate(floats);
  ChunkRef ref;
  if (chunk == nullptr) return ref;
  if (pooled) chunk->pool_ = pool;
  ref.chunk_ = chunk;
  return ref;
}

void ChunkRef::Release() {
  if (chunk_ == nullptr || chunk_->refs_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  Chunk* chunk = std::exchange(chunk_, nullptr);
  // A spare block must not hold a reference to its pool. Otherwise neither block nor pool would be
  // destroyed.
  const std::shared_ptr<ChunkPool> pool = std::move(chunk->pool_);
  if (pool != nullptr && pool->GiveBack(chunk)) return;
  Chunk::Free(chunk);
}

ChunkPool::~ChunkPool() {
  for (Chunk* chunk : spare_) Chunk::Free(chunk);
}

void ChunkPool::Warm(std::uint64_t bytes) {
  const std::uint64_t blocks =
      std::min(blocks_max_, bytes / kChunkBytes + (bytes % kChunkBytes != 0));
  while (this->bytes() < blocks * kChunkBytes) {
    Chunk* const chunk = Chunk::Allocate(kChunkFloats);
    if (chunk == nullptr) return;
    std::memset(chunk->data(), 0, kChunkBytes);
    if (GiveBack(chunk)) continue;
    Chunk::Free(chunk);  // other threads have filled the pool meanwhile
    return;
  }
}

std::uint64_t ChunkPool::bytes() const {
  MutexLock lock(&mu_);
  return spare_.size() * kChunkBytes;
}

std::uint64_t ChunkPool::refused() const {
  MutexLock lock(&mu_);
  return refused_;
}

Chunk* ChunkPool::Take() {
  MutexLock lock(&mu_);
  if (spare_.empty()) return nullptr;
  Chunk* chunk = spare_.back();
  spare_.pop_back();
  return chunk;
}

bool ChunkPool::GiveBack(Chunk* chunk) {
  MutexLock lock(&mu_);
  if (spare_.size() >= blocks_max_) {
    ++refused_;
    return false;
  }
  chunk->refs_.store(1, std::memory_order_relaxed);
  spare_.push_back(chunk);
  return true;
}

}  // namespace evergrad::ps_server::storage

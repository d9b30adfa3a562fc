// The elements of one dense shard (its values, or one of its optimizer states) in chunks.
//
// Copying takes references to the chunks: that is a snapshot, at the price of a pointer for each
// 256 KiB. Not thread-safe; the shard's executor owns it. What Share() returns may be read and
// dropped on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tensor/tensor.h"
#include "ps_server/storage/chunk.h"

namespace evergrad::ps_server::storage {

class DenseArray {
 public:
  DenseArray() = default;
  // Contents are not set. `pool` may be null. ResourceExhausted: no memory.
  static absl::StatusOr<DenseArray> Create(std::uint64_t elements, std::shared_ptr<ChunkPool> pool);
  static absl::StatusOr<DenseArray> Filled(std::uint64_t elements, float value,
                                           std::shared_ptr<ChunkPool> pool);
  static absl::StatusOr<DenseArray> Zeroed(std::uint64_t elements,
                                           std::shared_ptr<ChunkPool> pool) {
    return Filled(elements, 0, std::move(pool));
  }

  std::uint64_t size() const { return elements_; }
  std::size_t chunks() const { return chunks_.size(); }
  const std::shared_ptr<ChunkPool>& pool() const { return pool_; }
  std::span<const float> chunk(std::size_t i) const {
    return {chunks_[i]->data(), chunks_[i]->size()};
  }
  // Only while nobody else holds a reference: filling at the start.
  std::span<float> fill_chunk(std::size_t i) { return {chunks_[i]->data(), chunks_[i]->size()}; }

  // References in element order, never a copy.
  std::vector<tensor::SharedBytes> Share() const;

  // Takes a spare block for every chunk that someone else holds now. False: no memory, nothing has
  // changed. After true the writes below cannot fail: references only end meanwhile, because none
  // is given out but from the owner's thread.
  bool ReserveWrites();
  struct Write {
    const float* from = nullptr;
    float* to = nullptr;  // == from when nobody else holds the chunk
    std::size_t size = 0;
  };
  Write BeginWrite(std::size_t i);
  void EndWrite(std::size_t i);  // `to` is the chunk from now on
  void CancelWrites() { spares_.clear(); }

  // Sum over elements of Mix(first_index + i, bits) mod 2^64.
  std::uint64_t Digest(std::uint64_t first_index) const;

 private:
  std::uint64_t elements_ = 0;
  std::vector<ChunkRef> chunks_;
  std::vector<ChunkRef> spares_;     // empty, or one for each chunk (null: written in place)
  std::shared_ptr<ChunkPool> pool_;  // shared with the chunks that return to it
};

}  // namespace evergrad::ps_server::storage

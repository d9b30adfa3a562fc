// The elements of one dense shard (its values, or one of its optimizer states) in chunks.
//
// A copy of the array is a snapshot: it takes references to the chunks, one pointer for each 256
// KiB. Not thread-safe; the shard's executor owns it. Any thread may read and drop the references
// that Share() returns.
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
  // The three functions return ResourceExhausted if memory is exhausted. `pool` may be null. Create
  // does not initialise the contents.
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
  // Used to write the initial contents, while no other reference to the chunk exists.
  std::span<float> fill_chunk(std::size_t i) { return {chunks_[i]->data(), chunks_[i]->size()}; }

  // Returns references in the order of the elements.
  std::vector<tensor::SharedBytes> Share() const;

  // Takes a spare block for every chunk that has another reference now. Returns false, without a
  // change, if memory is exhausted. If it returns true, the writes below cannot fail: only the
  // owner's thread makes new references, so no chunk gets another reference before its write.
  bool ReserveWrites();
  struct Write {
    const float* from = nullptr;
    float* to = nullptr;  // equal to `from` if the chunk has no other reference
    std::size_t size = 0;
  };
  Write BeginWrite(std::size_t i);
  void EndWrite(std::size_t i);  // puts the block at Write::to in place of chunk i
  void CancelWrites() { spares_.clear(); }

  // Returns the sum over the elements of Mix(first_index + i, bits), mod 2^64.
  std::uint64_t Digest(std::uint64_t first_index) const;

 private:
  std::uint64_t elements_ = 0;
  std::vector<ChunkRef> chunks_;
  // Empty, or one entry for each chunk: the spare block for the new values, or null if the chunk is
  // written in place.
  std::vector<ChunkRef> spares_;
  std::shared_ptr<ChunkPool> pool_;  // shared with the chunks that return to it
};

}  // namespace evergrad::ps_server::storage

#include "ps_server/storage/dense_array.h"

#include <algorithm>
#include <bit>

#include "common/base/mix.h"

namespace evergrad::ps_server::storage {

absl::StatusOr<DenseArray> DenseArray::Create(std::uint64_t elements,
                                              std::shared_ptr<ChunkPool> pool) {
  DenseArray array;
  array.elements_ = elements;
  array.pool_ = std::move(pool);
  array.chunks_.reserve((elements + kChunkFloats - 1) / kChunkFloats);
  for (std::uint64_t at = 0; at < elements; at += kChunkFloats) {
    ChunkRef chunk =
        ChunkRef::New(std::min<std::uint64_t>(kChunkFloats, elements - at), array.pool_);
    if (!chunk)
      return absl::ResourceExhaustedError(
          absl::StrCat("out of memory for a chunk of a shard: elements=", elements, " at=", at));
    array.chunks_.push_back(std::move(chunk));
  }
  return array;
}

absl::StatusOr<DenseArray> DenseArray::Filled(std::uint64_t elements, float value,
                                              std::shared_ptr<ChunkPool> pool) {
  absl::StatusOr<DenseArray> array = Create(elements, std::move(pool));
  if (!array.ok()) return array;
  for (std::size_t i = 0; i < array->chunks(); ++i) std::ranges::fill(array->fill_chunk(i), value);
  return array;
}

std::vector<tensor::SharedBytes> DenseArray::Share() const {
  std::vector<tensor::SharedBytes> pieces;
  pieces.reserve(chunks_.size());
  for (const ChunkRef& chunk : chunks_) {
    auto owner = std::make_shared<const ChunkRef>(chunk);
    const std::span<const float> floats{chunk->data(), chunk->size()};
    pieces.push_back({std::move(owner), std::as_bytes(floats)});
  }
  return pieces;
}

bool DenseArray::ReserveWrites() {
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i].unique()) continue;
    ChunkRef spare = ChunkRef::New(chunks_[i]->size(), pool_);
    if (!spare) {
      CancelWrites();
      return false;
    }
    if (spares_.empty()) spares_.resize(chunks_.size());
    spares_[i] = std::move(spare);
  }
  return true;
}

DenseArray::Write DenseArray::BeginWrite(std::size_t i) {
  float* const held = chunks_[i]->data();
  return {held, spares_.empty() || !spares_[i] ? held : spares_[i]->data(), chunks_[i]->size()};
}

void DenseArray::EndWrite(std::size_t i) {
  if (!spares_.empty() && spares_[i]) chunks_[i] = std::move(spares_[i]);
  if (i + 1 == chunks_.size()) spares_.clear();
}

std::uint64_t DenseArray::Digest(std::uint64_t first_index) const {
  std::uint64_t sum = 0, index = first_index;
  for (const ChunkRef& chunk : chunks_) {
    const float* data = chunk->data();
    for (std::size_t i = 0; i < chunk->size(); ++i)
      sum += Mix(index++, std::bit_cast<std::uint32_t>(data[i]));
  }
  return sum;
}

}  // namespace evergrad::ps_server::storage

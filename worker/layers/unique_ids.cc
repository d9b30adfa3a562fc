#include "worker/layers/unique_ids.h"

#include <bit>

#include "common/sharding/slots.h"

namespace evergrad::worker {

void UniqueIds::Begin(std::size_t ids_max) {
  const std::size_t want = std::bit_ceil(ids_max * 2 + 16);
  if (cells_.size() < want) {
    cells_.assign(want, Cell{0, 0, 0});
    generation_ = 0;
  }
  if (++generation_ == 0) {
    for (Cell& cell : cells_) cell.generation = 0;
    generation_ = 1;
  }
}

void UniqueIds::Add(std::span<const std::int64_t> batch, std::vector<std::int64_t>* ids,
                    std::vector<std::uint32_t>* position) {
  const std::size_t mask = cells_.size() - 1;
  const std::size_t begin = position->size();
  position->resize(begin + batch.size());
  std::uint32_t* to = position->data() + begin;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const std::int64_t id = batch[i];
    if (id < 0) {
      to[i] = kAbsent;
      continue;
    }
    std::size_t at = sharding::Mix64(static_cast<std::uint64_t>(id)) & mask;
    while (cells_[at].generation == generation_ && cells_[at].id != id) at = (at + 1) & mask;
    Cell& cell = cells_[at];
    if (cell.generation != generation_) {
      cell = {id, static_cast<std::uint32_t>(ids->size()), generation_};
      ids->push_back(id);
    }
    to[i] = cell.position;
  }
}

}  // namespace evergrad::worker

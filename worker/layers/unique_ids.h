// Finds the distinct ids of a batch, whose rows are pulled from a table, and for each id of the
// batch the position of its row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/backend/backend.h"  // kAbsent

namespace evergrad::worker {

// An open-addressing hash table of positions. The table is kept between steps. A generation number
// marks old entries as empty, so a step neither allocates nor clears memory once the largest batch
// has been seen. Not thread-safe.
class UniqueIds {
 public:
  // Begins a batch of at most `ids_max` ids (below 2^31).
  void Begin(std::size_t ids_max);
  // Appends new ids to `ids`, in order of first appearance, and the position of every id to
  // `position` (kAbsent for a negative id). `ids` must be empty after Begin, and only this function
  // may write it.
  void Add(std::span<const std::int64_t> batch, std::vector<std::int64_t>* ids,
           std::vector<std::uint32_t>* position);

 private:
  struct Cell {
    std::int64_t id;
    std::uint32_t position, generation;
  };
  std::vector<Cell> cells_;  // the size is a power of two, and at most half of the cells are used
  std::uint32_t generation_ = 0;
};

}  // namespace evergrad::worker

// Unique ids with their inverse index: what is pulled of a table, and where each id of a batch
// finds its row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/backend/backend.h"  // kAbsent

namespace evergrad::worker {

// An open-addressing table of positions, kept and cleared by generation, so that a step costs no
// allocation and no sweep once it has seen the largest batch. Not thread-safe.
class UniqueIds {
 public:
  // Begins a batch of at most `ids_max` ids (< 2^31).
  void Begin(std::size_t ids_max);
  // Appends to `ids` what is new, in order of first appearance, and the position of every id to
  // `position`; kAbsent for a negative id. `ids` begins empty with Begin, and only this writes it.
  void Add(std::span<const std::int64_t> batch, std::vector<std::int64_t>* ids,
           std::vector<std::uint32_t>* position);

 private:
  struct Cell {
    std::int64_t id;
    std::uint32_t position, generation;
  };
  std::vector<Cell> cells_;  // a power of two, at most half of it used
  std::uint32_t generation_ = 0;
};

}  // namespace evergrad::worker

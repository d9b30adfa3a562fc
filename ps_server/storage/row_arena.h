// Rows of equal size, numbered from 0, in blocks that never move. Block k holds 64 x 2^k rows, so a
// table of ten rows needs little memory, and a table of billions of rows has few blocks. The kernel
// allocates a page of a block at the first write to one of its rows. Not thread-safe.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ps_server/storage/page_pool.h"

namespace evergrad::ps_server::storage {

class RowArena {
 public:
  static constexpr std::uint32_t kRowsMax = 1u << 30;

  // If `counted`, each row also has a 32-bit count. `pages` outlives the arena.
  RowArena(PagePool* pages, std::size_t row_floats, bool counted)
      : pages_(pages),
        row_floats_(row_floats),
        row_bytes_(row_floats * sizeof(float)),
        counted_(counted) {}
  ~RowArena();
  RowArena(const RowArena&) = delete;
  RowArena& operator=(const RowArena&) = delete;

  // Reserves memory so that `rows` more rows can be taken. Returns false if memory is exhausted, or
  // if the arena would have more than kRowsMax rows.
  bool Reserve(std::uint64_t rows);
  // Takes a reserved row, preferably a freed one. The contents of the row are not initialised, and
  // its count is 0.
  std::uint32_t Take();
  void Free(std::uint32_t row);

  float* At(std::uint32_t row) const {
    const std::uint32_t shifted = row + kFirstRows;
    return reinterpret_cast<float*>(bases_[std::countl_zero(shifted)] + shifted * row_bytes_);
  }
  std::uint32_t& Count(std::uint32_t row) const {
    const Where w = Find(row);
    return reinterpret_cast<std::uint32_t*>(
        blocks_[w.block])[(std::size_t{kFirstRows} << w.block) * row_floats_ + w.at];
  }

  std::uint64_t free_rows() const { return free_rows_; }
  // Returns a number above the numbers of all rows that were ever taken.
  std::uint64_t high_water() const { return high_water_; }
  // Returns the bytes of the rows below `high_water`.
  std::uint64_t BytesOf(std::uint64_t high_water) const {
    return high_water * (row_floats_ + counted_) * sizeof(float);
  }

 private:
  static constexpr std::uint32_t kFirstRows = 64;
  static constexpr int kFirstBits = 6, kBlocksMax = 26;
  struct Where {
    int block;
    std::size_t at;
  };
  static Where Find(std::uint32_t row) {
    const std::uint32_t shifted = row + kFirstRows;
    const int block = std::bit_width(shifted) - 1 - kFirstBits;
    return {block, shifted - (kFirstRows << block)};
  }
  std::size_t BlockBytes(int block) const {
    return (std::size_t{kFirstRows} << block) * (row_floats_ + counted_) * sizeof(float);
  }

  PagePool* const pages_;
  const std::size_t row_floats_, row_bytes_;
  const bool counted_;
  void* blocks_[kBlocksMax] = {};
  // The address of each block, minus the bytes of the rows before it. The index is the number of
  // leading zeros of row + kFirstRows, which determines the block.
  std::uintptr_t bases_[32] = {};
  int made_ = 0;
  // first_free_ begins the list of free rows: a free row begins with the number of the next one.
  std::uint32_t high_water_ = 0, free_rows_ = 0, first_free_ = 0;
};

}  // namespace evergrad::ps_server::storage

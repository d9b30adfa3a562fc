#include "ps_server/storage/row_arena.h"

namespace evergrad::ps_server::storage {

RowArena::~RowArena() {
  for (int k = 0; k < made_; ++k) pages_->Delete(blocks_[k], BlockBytes(k));
}

bool RowArena::Reserve(std::uint64_t rows) {
  if (rows <= free_rows_) return true;
  const std::uint64_t last = high_water_ + (rows - free_rows_);
  if (last > kRowsMax) return false;
  while ((std::uint64_t{kFirstRows} << made_) - kFirstRows < last) {
    blocks_[made_] = pages_->New(BlockBytes(made_));
    if (blocks_[made_] == nullptr) return false;
    const std::uint32_t first = kFirstRows << made_;
    bases_[std::countl_zero(first)] =
        reinterpret_cast<std::uintptr_t>(blocks_[made_]) - first * row_bytes_;
    ++made_;
  }
  return true;
}

std::uint32_t RowArena::Take() {
  std::uint32_t row = high_water_;
  if (free_rows_ > 0) {
    row = first_free_;
    std::memcpy(&first_free_, At(row), sizeof(first_free_));
    --free_rows_;
  } else {
    ++high_water_;
  }
  if (counted_) Count(row) = 0;
  return row;
}

void RowArena::Free(std::uint32_t row) {
  std::memcpy(At(row), &first_free_, sizeof(first_free_));
  first_free_ = row;
  ++free_rows_;
}

}  // namespace evergrad::ps_server::storage

#include "ps_server/storage/row_arena.h"

#include <sys/mman.h>

#include <new>

namespace evergrad::ps_server::storage {
namespace {

constexpr std::size_t kHugePage = 2u << 20;

// Whole large pages: a row of a large table is else two misses, its translation and its data.
void* NewBlock(std::size_t bytes) {
  if (bytes < kHugePage) return ::operator new(bytes, std::align_val_t{64}, std::nothrow);
  const std::size_t length = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* const got = mmap(nullptr, length + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(got), aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned != begin) munmap(got, aligned - begin);
  if (const std::size_t rest = begin + kHugePage - aligned; rest != 0) munmap(reinterpret_cast<void*>(aligned + length), rest);
  madvise(reinterpret_cast<void*>(aligned), length, MADV_HUGEPAGE);  // a wish: small pages do as well
  return reinterpret_cast<void*>(aligned);
}

void DeleteBlock(void* block, std::size_t bytes) {
  if (bytes < kHugePage) return ::operator delete(block, std::align_val_t{64});
  munmap(block, (bytes + kHugePage - 1) / kHugePage * kHugePage);
}

}  // namespace

RowArena::~RowArena() {
  for (int k = 0; k < made_; ++k) DeleteBlock(blocks_[k], BlockBytes(k));
}

bool RowArena::Reserve(std::uint64_t rows) {
  if (rows <= free_rows_) return true;
  const std::uint64_t last = high_water_ + (rows - free_rows_);
  if (last > kRowsMax) return false;
  while ((std::uint64_t{kFirstRows} << made_) - kFirstRows < last) {
    blocks_[made_] = NewBlock(BlockBytes(made_));
    if (blocks_[made_] == nullptr) return false;
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

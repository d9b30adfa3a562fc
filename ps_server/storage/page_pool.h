// Memory for indexes and rows on large pages. On small ones every look-up of a large table is two
// misses, of the page's translation and of the data, and the first is the dearer one in a virtual
// machine: measured, a third of the look-ups.
//
// 2 MiB at a time from the system, given out in multiples of 4 KiB, first fit from where the last
// one was found; neighbours that come back grow together again. Shared by all tables of a server,
// so that small ones share pages. Thread-safe; tables come here rarely. No memory is charged here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "common/base/mutex.h"

namespace evergrad::ps_server::storage {

class PagePool {
 public:
  // `refuse`: asked before memory of so many bytes is given; true: there is none. For tests; empty:
  // nobody is asked.
  explicit PagePool(std::function<bool(std::size_t)> refuse = nullptr)
      : refuse_(std::move(refuse)) {}
  ~PagePool();  // everything has come back
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // 64-byte aligned, contents not set. nullptr: no memory. What is small comes from the heap, 2 MiB
  // and more from the system by itself.
  void* New(std::size_t bytes);
  void Delete(void* memory, std::size_t bytes);
  // What New(bytes) takes.
  static std::size_t Rounded(std::size_t bytes);

 private:
  static constexpr std::size_t kPage = 4096, kSlab = 2u << 20, kPagesOfSlab = kSlab / kPage,
                               kHeapMax = 2048;
  struct Slab {
    char* base = nullptr;  // null: given back to the system
    std::size_t free = kPagesOfSlab;
    std::size_t too_long =
        kPagesOfSlab + 1;  // as many pages in a row were not found since some came back
    std::array<std::uint64_t, kPagesOfSlab / 64> used{};
  };
  static std::size_t FindRun(const Slab& slab, std::size_t pages);  // kPagesOfSlab: none
  void* Take(std::size_t slab, std::size_t first, std::size_t pages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::function<bool(std::size_t)> refuse_;
  Mutex mu_;
  std::vector<Slab> slabs_ ABSL_GUARDED_BY(mu_);  // in order of their making
  std::size_t last_ ABSL_GUARDED_BY(mu_) = 0;     // where pages were found, or came back
};

}  // namespace evergrad::ps_server::storage

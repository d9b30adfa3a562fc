// Memory for indexes and rows on large pages. On small pages every look-up in a large table is two
// misses, one for the page's translation and one for the data. In a virtual machine the first is
// the more expensive one: measured, a third of the time of look-ups.
//
// The pool takes 2 MiB at a time from the system and gives out multiples of 4 KiB, by first fit
// from the last place; neighbours that are freed merge. All tables of a server share it, so that
// small ones share pages. Thread-safe; tables call it rarely. The pool charges no budget.
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
  // For tests: `refuse` is called with the bytes of each request, and true makes New return
  // nullptr.
  explicit PagePool(std::function<bool(std::size_t)> refuse = nullptr)
      : refuse_(std::move(refuse)) {}
  ~PagePool();  // All memory has been deleted.
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Returns memory aligned to 64 bytes, contents not set; nullptr: out of memory. Small pieces come
  // from the heap, and pieces of 2 MiB and more each from the system.
  void* New(std::size_t bytes);
  void Delete(void* memory, std::size_t bytes);
  // The bytes that New(bytes) takes.
  static std::size_t Rounded(std::size_t bytes);

 private:
  static constexpr std::size_t kPage = 4096, kSlab = 2u << 20, kPagesOfSlab = kSlab / kPage,
                               kHeapMax = 2048;
  struct Slab {
    char* base = nullptr;  // null: released to the system
    std::size_t free = kPagesOfSlab;
    std::size_t too_long =
        kPagesOfSlab + 1;  // So many pages in a row were not found since some were freed.
    std::array<std::uint64_t, kPagesOfSlab / 64> used{};
  };
  static std::size_t FindRun(const Slab& slab, std::size_t pages);  // kPagesOfSlab: none
  void* Take(std::size_t slab, std::size_t first, std::size_t pages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::function<bool(std::size_t)> refuse_;
  Mutex mu_;
  std::vector<Slab> slabs_ ABSL_GUARDED_BY(mu_);  // in order of their creation
  std::size_t last_ ABSL_GUARDED_BY(mu_) = 0;     // the slab where pages were last found or freed
};

}  // namespace evergrad::ps_server::storage

// Memory for indexes and rows on large pages. On small pages every look-up in a large table causes
// two misses, one for the address translation and one for the data. The miss of the
// translation is more expensive in a virtual machine. Large pages saved a third of the measured
// time of look-ups.
//
// The pool takes slabs of 2 MiB from the system and allocates multiples of 4 KiB in them, by first
// fit, beginning with the slab of the last allocation. Adjacent free pages merge. All tables of a
// server share the pool, so that small tables share slabs. Thread-safe; tables call it rarely. The
// pool does not charge its memory to a MemoryBudget; the tables do.
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
  // `refuse` is for tests, and is called with the bytes of each request. If `refuse` returns true,
  // New returns nullptr.
  explicit PagePool(std::function<bool(std::size_t)> refuse = nullptr)
      : refuse_(std::move(refuse)) {}
  ~PagePool();  // all memory must have been returned before
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Returns memory that is aligned to 64 bytes and not initialised, or nullptr if memory is
  // exhausted. Small pieces come from the heap. Each piece of 2 MiB or more comes directly from the
  // system.
  void* New(std::size_t bytes);
  void Delete(void* memory, std::size_t bytes);
  // Returns the bytes that New(bytes) uses.
  static std::size_t Rounded(std::size_t bytes);

 private:
  static constexpr std::size_t kPage = 4096, kSlab = 2u << 20, kPagesOfSlab = kSlab / kPage,
                               kHeapMax = 2048;
  struct Slab {
    char* base = nullptr;  // null if the slab was returned to the system
    std::size_t free = kPagesOfSlab;
    // The slab has no run of this many free pages. The number is reset when pages of the slab are
    // freed.
    std::size_t too_long = kPagesOfSlab + 1;
    std::array<std::uint64_t, kPagesOfSlab / 64> used{};
  };
  // Returns the first page of a run of free pages, or kPagesOfSlab if there is no such run.
  static std::size_t FindRun(const Slab& slab, std::size_t pages);
  void* Take(std::size_t slab, std::size_t first, std::size_t pages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::function<bool(std::size_t)> refuse_;
  Mutex mu_;
  std::vector<Slab> slabs_ ABSL_GUARDED_BY(mu_);  // in order of their creation
  std::size_t last_ ABSL_GUARDED_BY(mu_) = 0;     // the slab where pages were last found or freed
};

}  // namespace evergrad::ps_server::storage

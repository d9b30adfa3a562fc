#include "ps_server/storage/page_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>

namespace evergrad::ps_server::storage {
namespace {

// Under AddressSanitizer each piece is a heap block, so that a write beyond its end is detected.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kPooled = false;
#else
constexpr bool kPooled = true;
#endif

constexpr std::size_t kHuge = 2u << 20;

void* MapHuge(std::size_t length) {
  void* const got = mmap(nullptr, length + kHuge, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(got),
             aligned = (begin + kHuge - 1) / kHuge * kHuge;
  if (aligned != begin) munmap(got, aligned - begin);
  if (const std::size_t rest = begin + kHuge - aligned; rest != 0)
    munmap(reinterpret_cast<void*>(aligned + length), rest);
  madvise(reinterpret_cast<void*>(aligned), length,
          MADV_HUGEPAGE);  // the kernel may still use small pages
  return reinterpret_cast<void*>(aligned);
}

}  // namespace

std::size_t PagePool::Rounded(std::size_t bytes) {
  if (bytes <= kHeapMax || !kPooled) return bytes;
  const std::size_t unit = bytes >= kSlab ? kSlab : kPage;
  return (bytes + unit - 1) / unit * unit;
}

PagePool::~PagePool() {
  for (const Slab& slab : slabs_) {
    if (slab.base != nullptr) munmap(slab.base, kSlab);
  }
}

std::size_t PagePool::FindRun(const Slab& slab, std::size_t pages) {
  std::size_t run = 0;
  for (std::size_t i = 0; i < kPagesOfSlab; ++i) {
    const std::uint64_t word = slab.used[i / 64];
    if (i % 64 == 0 && word == ~0ull) {
      run = 0;
      i += 63;
      continue;
    }
    run = (word >> (i % 64) & 1) != 0 ? 0 : run + 1;
    if (run == pages) return i + 1 - pages;
  }
  return kPagesOfSlab;
}

void* PagePool::Take(std::size_t s, std::size_t first, std::size_t pages) {
  Slab& slab = slabs_[s];
  for (std::size_t i = first; i < first + pages; ++i) slab.used[i / 64] |= 1ull << (i % 64);
  slab.free -= pages;
  last_ = s;
  return slab.base + first * kPage;
}

void* PagePool::New(std::size_t bytes) {
  if (refuse_ && refuse_(bytes)) return nullptr;
  if (bytes <= kHeapMax || !kPooled)
    return ::operator new (bytes, std::align_val_t{64}, std::nothrow);
  if (bytes >= kSlab) return MapHuge(Rounded(bytes));
  const std::size_t pages = Rounded(bytes) / kPage;
  MutexLock lock(&mu_);
  for (std::size_t k = 0; k < slabs_.size(); ++k) {
    const std::size_t s = last_ + k < slabs_.size() ? last_ + k : last_ + k - slabs_.size();
    Slab& slab = slabs_[s];
    if (slab.base == nullptr || slab.free < pages || slab.too_long <= pages) continue;
    if (const std::size_t first = FindRun(slab, pages); first != kPagesOfSlab)
      return Take(s, first, pages);
    slab.too_long = pages;
  }
  void* const base = MapHuge(kSlab);
  if (base == nullptr) return nullptr;
  auto empty = std::find_if(slabs_.begin(), slabs_.end(),
                            [](const Slab& slab) { return slab.base == nullptr; });
  if (empty == slabs_.end()) empty = slabs_.insert(slabs_.end(), Slab{});
  *empty = Slab{};
  empty->base = static_cast<char*>(base);
  return Take(static_cast<std::size_t>(empty - slabs_.begin()), 0, pages);
}

void PagePool::Delete(void* memory, std::size_t bytes) {
  if (bytes <= kHeapMax || !kPooled) return ::operator delete (memory, std::align_val_t{64});
  if (bytes >= kSlab) {
    munmap(memory, Rounded(bytes));
    return;
  }
  char* const base =
      reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(memory) / kSlab * kSlab);
  MutexLock lock(&mu_);
  const auto slab =
      std::find_if(slabs_.begin(), slabs_.end(), [base](const Slab& s) { return s.base == base; });
  const std::size_t first = static_cast<std::size_t>(static_cast<char*>(memory) - base) / kPage,
                    pages = Rounded(bytes) / kPage;
  for (std::size_t i = first; i < first + pages; ++i) slab->used[i / 64] &= ~(1ull << (i % 64));
  slab->free += pages;
  slab->too_long = kPagesOfSlab + 1;
  if (slab->free == kPagesOfSlab) {
    munmap(slab->base, kSlab);
    slab->base = nullptr;
  }
}

}  // namespace evergrad::ps_server::storage

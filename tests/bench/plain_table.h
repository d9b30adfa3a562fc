// The rival of embedding tables in the benchmarks: a minimal table of fixed size. It has one flat
// open-addressing array of {key, row}, and one flat array of rows with their accumulators. Memory
// is allocated in advance, on large pages. Adagrad is written inline. The table is used by one
// thread.
#pragma once

#include <sys/mman.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/base/check.h"
#include "common/sharding/slots.h"

namespace evergrad::bench {

// Zero-initialized memory on large pages.
template <class T>
class Pages {
 public:
  explicit Pages(std::size_t n) : bytes_((n * sizeof(T) + kHuge - 1) / kHuge * kHuge + kHuge) {
    got_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EG_CHECK(got_ != MAP_FAILED);
    at_ =
        reinterpret_cast<T*>((reinterpret_cast<std::uintptr_t>(got_) + kHuge - 1) / kHuge * kHuge);
    madvise(at_, bytes_ - kHuge, MADV_HUGEPAGE);
  }
  ~Pages() { munmap(got_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  T* get() const { return at_; }

 private:
  static constexpr std::size_t kHuge = 2u << 20;
  const std::size_t bytes_;
  void* got_ = nullptr;
  T* at_ = nullptr;
};

template <std::size_t kDimension>
class PlainTable {
 public:
  explicit PlainTable(std::size_t rows)
      : places_(PlacesFor(rows)),
        mask_(places_ - 1),
        slots_(places_),
        rows_(rows * 2 * kDimension) {}

  // Finds or inserts the rows of `ids`, and applies Adagrad to them.
  void Update(const std::int64_t* ids, std::size_t n, const float* gradient) {
    float* rows[kAhead];
    for (std::size_t i = 0; i < n + 2 * kAhead; ++i) {
      if (i < n) __builtin_prefetch(slots_.get() + (Hash(ids[i]) & mask_));
      if (i >= 2 * kAhead) {
        const std::size_t j = i - 2 * kAhead;
        float* __restrict w = rows[j % kAhead];
        float* __restrict a = w + kDimension;
        const float* __restrict g = gradient + j * kDimension;
        for (std::size_t k = 0; k < kDimension; ++k) {
          a[k] = a[k] + g[k] * g[k];
          w[k] = w[k] - 0.01f * g[k] / (std::sqrt(a[k]) + 1e-7f);
        }
      }
      if (i >= kAhead && i - kAhead < n) {
        const std::size_t j = i - kAhead;
        float* const row = rows_.get() + std::size_t{FindOrInsert(ids[j])} * 2 * kDimension;
        rows[j % kAhead] = row;
        for (std::size_t k = 0; k < 2 * kDimension; k += 16) __builtin_prefetch(row + k, 1);
      }
    }
  }
  // Finds the rows of `ids` and copies them to `out`.
  void Read(const std::int64_t* ids, std::size_t n, float* out) {
    const float* rows[kAhead];
    for (std::size_t i = 0; i < n + 2 * kAhead; ++i) {
      if (i < n) __builtin_prefetch(slots_.get() + (Hash(ids[i]) & mask_));
      if (i >= 2 * kAhead)
        std::memcpy(out + (i - 2 * kAhead) * kDimension, rows[i % kAhead],
                    kDimension * sizeof(float));
      if (i >= kAhead && i - kAhead < n) {
        const std::size_t j = i - kAhead;
        const float* const row = rows_.get() + std::size_t{FindOrInsert(ids[j])} * 2 * kDimension;
        rows[j % kAhead] = row;
        for (std::size_t k = 0; k < kDimension; k += 16) __builtin_prefetch(row + k);
      }
    }
  }

 private:
  static constexpr std::size_t kAhead = 16;
  struct Slot {
    std::int64_t key = 0;
    std::uint32_t row_and_one = 0;
  };
  static std::size_t PlacesFor(std::size_t rows) {  // at most three quarters full
    std::size_t places = 1;
    while (places * 3 < rows * 4) places *= 2;
    return places;
  }
  static std::uint64_t Hash(std::int64_t id) {
    return sharding::Mix64(static_cast<std::uint64_t>(id));
  }
  std::uint32_t FindOrInsert(std::int64_t id) {
    Slot* const slots = slots_.get();
    for (std::size_t at = Hash(id) & mask_;; at = (at + 1) & mask_) {
      if (slots[at].row_and_one != 0 && slots[at].key == id) return slots[at].row_and_one - 1;
      if (slots[at].row_and_one == 0) {
        slots[at].key = id;
        slots[at].row_and_one = ++count_;
        float* const row = rows_.get() + std::size_t{count_ - 1} * 2 * kDimension;
        for (std::size_t k = 0; k < kDimension; ++k) row[k] = 0, row[kDimension + k] = 0.1f;
        return count_ - 1;
      }
    }
  }
  const std::size_t places_, mask_;
  const Pages<Slot> slots_;
  const Pages<float> rows_;
  std::uint32_t count_ = 0;
};

}  // namespace evergrad::bench

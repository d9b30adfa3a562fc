// The rows and waiting ids of one table, in their index and arena, and the budget to which their
// memory is charged. The parts of an EmbeddingTable (PushPlan, Evictor, PushApplier, TableCut and
// RowReader) share the store. The store has a single writer, like the table.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/optimizers/registry.h"
#include "common/sharding/slots.h"
#include "ps_server/storage/memory_budget.h"
#include "ps_server/storage/row_arena.h"
#include "ps_server/storage/row_index.h"
#include "ps_server/storage/table_settings.h"

namespace evergrad::ps_server::storage {

// RowIndex::Entry::row is the number of a row in the arena, or for a waiting id kWaiting plus the
// number of pushes that have named the id. The number of pushes is 0 only while the first push of
// the id is prepared.
inline constexpr std::uint32_t kWaiting = 1u << 31, kCountMax = (1u << 30) - 2;
inline bool IsRow(const RowIndex::Entry& e) { return (e.row & kWaiting) == 0; }
inline std::uint32_t CountOf(const RowIndex::Entry& e) { return e.row & ~kWaiting; }
inline bool IsRow(RowIndex::Ref e) { return (e.row() & kWaiting) == 0; }
inline std::uint32_t CountOf(RowIndex::Ref e) { return e.row() & ~kWaiting; }

// A loop over single entries prefetches the entry that is this many positions ahead.
inline constexpr std::size_t kAheadRows = 16;
// A push looks ids up, and updates rows, in groups of kGroup. A step works on one group while the
// prefetches of the previous kDelay steps are in flight. The loop of a step is short, so that the
// processor has many misses in flight at once, including misses of the address translation, which
// delay a prefetch.
inline constexpr std::size_t kGroup = 16, kDelay = 2, kRing = 8;
static_assert(kDelay < kRing);

// Returns the inverse of sharding::Mix64, computed from the inverses of its odd factors and of its
// shifts.
constexpr std::uint64_t Unmix64(std::uint64_t x) {
  x ^= x >> 31 ^ x >> 62;
  x *= 0x319642b2d24d8ec3ull;
  x ^= x >> 27 ^ x >> 54;
  x *= 0x96de1b173f119089ull;
  return x ^ x >> 30 ^ x >> 60;
}
static_assert(Unmix64(sharding::Mix64(0x0123456789abcdefull)) == 0x0123456789abcdefull);
static_assert(Unmix64(sharding::Mix64(~0ull)) == ~0ull);

struct RowStore {
  RowStore(const TableSettings& settings, const optimizer::Optimizer& update,
           const std::shared_ptr<MemoryBudget>& budget);

  // Returns the hash of an id under a bijection. The upper bits of Mix64 choose the slot of an id.
  // If the job's seed is 0, this hash would have the same upper bits for many ids of one slot, so
  // its halves are exchanged.
  std::uint64_t HashOf(std::int64_t id) const {
    return std::rotl(sharding::Mix64(static_cast<std::uint64_t>(id) ^ key), 32);
  }
  // Computes the hashes of at most kSize ids. The loop is separate so that the compiler vectorises
  // the multiplications.
  template <std::size_t kSize>
  void HashesOf(const std::int64_t* ids, std::size_t size, std::uint64_t* to) const {
    if (size == kSize) {
      for (std::size_t k = 0; k < kSize; ++k) to[k] = HashOf(ids[k]);
    } else {
      for (std::size_t k = 0; k < size; ++k) to[k] = HashOf(ids[k]);
    }
  }
  std::int64_t IdOf(std::uint64_t hash) const {
    return static_cast<std::int64_t>(Unmix64(std::rotl(hash, 32)) ^ key);
  }
  // Writes the initial values (`dimension` floats) of the row with this hash to `to`.
  void FillInitial(std::uint64_t hash, float* to) const {
    initial.Fill(std::rotl(hash, 32), {to, dimension});
  }

  // See EmbeddingTable::bytes_of.
  std::uint64_t bytes_of(std::uint64_t rows_held, std::uint64_t waiting_held) const {
    return rows_held * ((row_floats + update.counts_per_row()) * sizeof(float) +
                        optimizers::kIndexBytesPerRow) +
           waiting_held * optimizers::kIndexBytesPerRow;
  }
  // Returns the bytes to charge for an arena with row numbers below `high_water`.
  std::uint64_t ChargedBytes(std::uint64_t high_water) const;
  // Sets the charges to the memory that is held.
  void Settle();

  const TableSettings settings;
  const optimizer::Optimizer update;
  const RowInitializer initial;
  const bool stamped;  // true if TTL or LRU needs the time of each row's last push
  // The shares keep the budget alive, because index and arena use its pages.
  BudgetShare arena_share, index_share;
  const std::uint64_t key;
  const std::size_t dimension, row_floats;  // row_floats counts values and optimizer state
  RowIndex index;
  RowArena arena;
  std::uint64_t rows = 0, waiting = 0;
  std::uint32_t step = 0;  // the highest global step of all pushes so far
};

}  // namespace evergrad::ps_server::storage

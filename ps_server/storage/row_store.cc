#include "ps_server/storage/row_store.h"

#include <utility>

#include "common/random/philox.h"

namespace evergrad::ps_server::storage {

RowStore::RowStore(const TableSettings& of, const optimizer::Optimizer& optimizer,
                   const std::shared_ptr<MemoryBudget>& budget)
    : settings(of),
      update(optimizer),
      initial(of.initializer),
      stamped(of.ttl_steps != 0 || of.evict_lru),
      arena_share(budget),
      index_share(budget),
      key(random::KeyOf(of.initializer.seed, of.name)),
      dimension(of.dimension),
      row_floats(of.dimension + update.state_per_row(of.dimension)),
      index(&budget->pages(), stamped),
      arena(&budget->pages(), row_floats, update.counts_per_row()) {
  index_share.SetTo(index.bytes());
}

std::uint64_t RowStore::ChargedBytes(std::uint64_t high_water) const {
  // Memory is charged in steps of 256 KiB, or in smaller steps for a small table.
  constexpr std::uint64_t kStep = 256u << 10, kLeast = 4096;
  const std::uint64_t bytes = arena.BytesOf(high_water);
  if (bytes == 0) return 0;
  return bytes >= kStep ? (bytes + kStep - 1) / kStep * kStep
                        : std::bit_ceil(std::max(bytes, kLeast));
}

void RowStore::Settle() {
  arena_share.SetTo(ChargedBytes(arena.high_water()));
  index_share.SetTo(index.bytes());
}

}  // namespace evergrad::ps_server::storage

// Decides which rows and waiting ids a push drops: entries that are too old (TTL), and the oldest
// entries if a limit (bytes_max or the server's budget) would otherwise be exceeded.
//
// The class only decides. The table changes when PushApplier drops the entries. Entries that the
// push names are never dropped. The oldest entry is the one with the lowest (stamp, id), so the
// choice does not depend on the layout of the memory. The class has a single writer, like the
// table.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "ps_server/storage/duplicate_ids.h"
#include "ps_server/storage/row_store.h"
#include "ps_server/storage/table_stats.h"

namespace evergrad::ps_server::storage {

class Evictor {
 public:
  // The entries that a push adds.
  struct Growth {
    // rows_from_waiting counts the new rows of ids that wait now.
    std::uint64_t rows = 0, rows_from_waiting = 0;
    std::uint64_t waiting = 0;
    bool any() const { return rows + waiting > 0; }
    // Returns the number of entries that the index gets.
    std::uint64_t entries() const { return rows - rows_from_waiting + waiting; }
  };

  explicit Evictor(RowStore* store) : store_(*store) {}  // `store` outlives the evictor.

  // Begins a push that names ids with these hashes. The memory of `named` stays valid until the
  // next push.
  void Begin(std::span<const std::uint64_t> named);
  // Chooses the entries that are older than ttl_steps at the store's step. `step_before` is the
  // table's time before the push. Counts the entries in `outcome`.
  void Expire(std::uint32_t step_before, PushOutcome* outcome);
  // Charges and reserves the memory of `growth`, and chooses the oldest entries if a limit requires
  // it, waiting ids before rows. Counts the chosen entries in `outcome`, whose other numbers must
  // be final. Returns ResourceExhausted if memory is exhausted, or if a limit is exceeded and not
  // enough entries can be dropped. After an error the caller must cancel the push and call
  // RowStore::Settle.
  absl::Status MakeSpace(const Growth& growth, PushOutcome* outcome);

  // Returns the hashes of the entries to drop, in the order in which they were chosen.
  std::span<const std::uint64_t> dropped() const { return dropped_; }

 private:
  struct Entries {
    std::uint64_t waiting = 0, rows = 0;
  };
  struct Space {
    Entries after;      // entries after the push, without those that are too old
    Entries evictable;  // entries of `after` that the push does not name
    Entries drop;       // least number of entries that must be dropped
  };
  bool IsNamed(std::uint64_t hash);
  void ExpirePart(std::uint64_t part, PushOutcome* outcome);
  absl::Status FitBytesMax(const Growth& growth, Space* space) const;
  absl::Status FitServerLimit(const Growth& growth, const PushOutcome& outcome, Space* space);
  std::uint64_t MoreArenaRows(const Growth& growth, const PushOutcome& outcome,
                              const Space& space) const;
  absl::Status Refusal(absl::string_view why, absl::string_view details) const;
  void DropOldest(bool rows, std::uint64_t count);

  RowStore& store_;
  std::span<const std::uint64_t> named_;
  bool positions_ready_ = false;
  HashPositions positions_;  // positions in named_; only pushes that drop entries need them
  std::vector<std::uint64_t> dropped_;
};

}  // namespace evergrad::ps_server::storage

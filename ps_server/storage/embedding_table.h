// One partition of an embedding table: the rows of one slot, each under a 64-bit id. Pushes make
// the rows, and pulls read the rows. A waiting id is an id that has no row yet, because not enough
// pushes have named it (TableSettings::admit_after).
//
// The table has a single writer: the shard's executor calls every method. There is no lock and no
// clock, and the seed is the only source of randomness. The answers, the rows that are kept and the
// rows that are dropped depend only on the contents and the order of the calls, and not on memory
// addresses or cuts. A table that was restored from a cut continues as the original would. There is
// one exception: the server's budget is shared with other tables, so the outcome at the limit of
// the budget depends on the other tables, too.
//
// A push has two halves, like a push to a shard: Prepare does everything that can fail and changes
// no visible state. Apply cannot fail. From Prepare until Apply has ended, calls of Read and of the
// functions for cuts, restoring, digests and stats fail an EG_CHECK.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tensor/wire_type.h"
#include "ps_server/storage/hot_ids.h"
#include "ps_server/storage/memory_budget.h"
#include "ps_server/storage/row_reader.h"
#include "ps_server/storage/table_settings.h"
#include "ps_server/storage/table_slice.h"
#include "ps_server/storage/table_stats.h"

namespace evergrad::ps_server::storage {

struct RowStore;
class PushPlan;
class PushApplier;
class TableCut;

class EmbeddingTable {
 public:
  // All tables of a server share `budget`; if it is null, there is no limit. Returns
  // InvalidArgument if the initializer or optimizer is unknown, or a number is out of range.
  static absl::StatusOr<std::unique_ptr<EmbeddingTable>> Create(
      const TableSettings& settings, std::shared_ptr<MemoryBudget> budget);
  ~EmbeddingTable();
  EmbeddingTable(const EmbeddingTable&) = delete;
  EmbeddingTable& operator=(const EmbeddingTable&) = delete;

  // Calls ReadRows (row_reader.h) for this table alone.
  void Read(std::span<const std::int64_t> ids, float* out) const {
    ReadRows({{this, ids, tensor::WireType::kFloat32, reinterpret_cast<std::byte*>(out)}});
  }

  // Plans the push, and reserves the memory that it needs (PushPlan). Returns ResourceExhausted if
  // memory is exhausted, or if bytes_max or the server's limit is exceeded and not enough rows can
  // be evicted. The table is then unchanged. Returns InvalidArgument if global_step does not fit 32
  // bits. `global_step` may be lower than that of an earlier push: the table's time is the highest
  // step so far, and the stamp of a row (the time of its last push) never decreases. After OK, call
  // Apply until applying() is false, or Cancel.
  absl::StatusOr<PushOutcome> Prepare(std::span<const std::int64_t> ids, std::uint64_t global_step);
  void Cancel();
  // Applies the push in pieces of at least one row and at most about `bytes_max` bytes of gradient.
  // The first piece also drops the evicted rows. `gradient` has ids.size() rows of type `wire` in
  // the order of Prepare's ids, at any address, and must be the same for every piece. Returns the
  // bytes of float32 gradient that were applied.
  std::uint64_t Apply(const float* gradient, std::uint64_t bytes_max) {
    return Apply(tensor::WireType::kFloat32, reinterpret_cast<const std::byte*>(gradient),
                 bytes_max);
  }
  std::uint64_t Apply(tensor::WireType wire, const std::byte* gradient, std::uint64_t bytes_max);
  bool applying() const { return phase_ != Phase::kIdle; }

  // A cut (TableCut) is the table as it was at BeginCut, read in slices between pushes. A table has
  // at most one cut at a time (EG_CHECK). A push saves the old contents of each row that it changes
  // and that no slice contains yet. If the saved contents would exceed `preimage_bytes_max` bytes,
  // the cut becomes kLost and the push continues.
  struct CutInfo {
    std::uint64_t rows = 0, waiting = 0;  // exact numbers of rows and ids in all slices together
    std::uint64_t step = 0;               // the table's time, for RestoreStep
  };
  CutInfo BeginCut(std::uint64_t preimage_bytes_max);
  enum class CutState { kNone, kOpen, kLost };
  CutState cut_state() const;
  // Calls TableCut::NextSlice. Returns false if there is no cut. If there is a cut and the result
  // is false, this slice was the last one, unless cut_state() is kLost. The slices of a lost cut
  // must not be used.
  bool NextSlice(std::uint64_t bytes_max, TableSlice* slice);
  void EndCut();  // may be called at any time; without a cut it does nothing

  // Appends rows to a table that has had no push yet. Returns InvalidArgument for a duplicate id,
  // arrays of different lengths, or numbers out of range, and ResourceExhausted if the server's
  // limit is exceeded. After an error the table must be destroyed. Restored rows may exceed
  // bytes_max, because the limit may have been lowered. The next push that makes a row then evicts
  // rows or is refused.
  absl::Status Restore(const RestoredRows& rows);
  absl::Status Restore(const RestoredWaiting& waiting);
  // Sets the table's time to CutInfo::step. Without this call, the time is the highest restored
  // stamp.
  absl::Status RestoreStep(std::uint64_t step);

  const TableSettings& settings() const;
  std::uint32_t dimension() const { return settings().dimension; }
  std::uint32_t state_per_row() const;
  bool counts_per_row() const;  // true if the optimizer needs each row's number of gradients
  bool stamps() const;          // true if TTL or LRU is on
  std::uint64_t rows() const;
  std::uint64_t waiting() const;
  // Returns the number that is compared with bytes_max. The number depends only on the numbers of
  // rows and waiting ids, and not on the history of the table.
  std::uint64_t bytes_of(std::uint64_t rows, std::uint64_t waiting) const;
  TableStats stats() const;
  std::vector<HotId> Hottest(std::size_t count) const;  // in descending order of `pushes`

  // Sums over rows, mod 2^64. The digests do not depend on order or layout, and the digests of a
  // table's partitions add up to the digest of the table.
  struct Digests {
    std::uint64_t values = 0, state = 0;
    std::uint64_t counters = 0;  // sum over ids, stamps and counts of rows and of waiting ids
    friend bool operator==(const Digests&, const Digests&) = default;
  };
  Digests Digest() const;  // O(rows)

  const RowStore& store() const { return *store_; }  // for ReadRows

 private:
  enum class Phase { kIdle, kPrepared, kApplying };
  explicit EmbeddingTable(std::unique_ptr<RowStore> store);

  std::unique_ptr<RowStore> store_;
  std::unique_ptr<PushPlan> plan_;
  std::unique_ptr<PushApplier> applier_;
  std::unique_ptr<TableCut> cut_;  // null if there is no cut
  HotIds hot_;
  TableStats counted_;  // uses only the members that count since this process holds the table
  Phase phase_ = Phase::kIdle;
};

}  // namespace evergrad::ps_server::storage

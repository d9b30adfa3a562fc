// One partition of an embedding table: the rows of one slot, each under a 64-bit id, made by pushes
// and read by pulls.
//
// Single writer: the shard's executor calls every method. There is no lock, no clock, and no
// randomness except the seed's. The answers, the rows that are kept and the rows that are dropped
// are a function of the contents of the calls, in their order, and never of memory addresses or of
// a cut: a table that was restored from a cut continues as the original. There is one exception:
// the server's budget is shared with other tables, so the outcome at that limit depends on them.
//
// A push has two halves, like a push to a shard: Prepare does everything that can fail and changes
// nothing that can be seen; Apply cannot fail. Between them, and until Apply has ended, Read, cuts,
// Restore, digests and stats are EG_CHECK failures.
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
  // All tables of a server share `budget` (null: no limit). InvalidArgument: the initializer or
  // optimizer is unknown, or a number is out of range.
  static absl::StatusOr<std::unique_ptr<EmbeddingTable>> Create(
      const TableSettings& settings, std::shared_ptr<MemoryBudget> budget);
  ~EmbeddingTable();
  EmbeddingTable(const EmbeddingTable&) = delete;
  EmbeddingTable& operator=(const EmbeddingTable&) = delete;

  // ReadRows (row_reader.h) of this table alone.
  void Read(std::span<const std::int64_t> ids, float* out) const {
    ReadRows({{this, ids, tensor::WireType::kFloat32, reinterpret_cast<std::byte*>(out)}});
  }

  // Decides the push, and reserves all that it needs (PushPlan). ResourceExhausted: above bytes_max
  // or the server's limit without enough rows that may be evicted, or out of memory; the table is
  // unchanged. InvalidArgument: global_step does not fit 32 bits. `global_step` may be a little
  // lower than before: the table's time is the highest that it has seen, and a row's stamp never
  // falls. After OK, call Apply until applying() is false, or Cancel.
  absl::StatusOr<PushOutcome> Prepare(std::span<const std::int64_t> ids, std::uint64_t global_step);
  void Cancel();
  // Applies the push in pieces of at least one row and at most about `bytes_max` of gradient; the
  // first piece also drops the evicted rows. `gradient` has ids.size() rows of type `wire` in the
  // order of Prepare's ids, at any address, the same for every piece. Returns the bytes of float32
  // gradient that were applied.
  std::uint64_t Apply(const float* gradient, std::uint64_t bytes_max) {
    return Apply(tensor::WireType::kFloat32, reinterpret_cast<const std::byte*>(gradient),
                 bytes_max);
  }
  std::uint64_t Apply(tensor::WireType wire, const std::byte* gradient, std::uint64_t bytes_max);
  bool applying() const { return phase_ != Phase::kIdle; }

  // A cut (TableCut): the table as it is at BeginCut, handed out in slices between pushes. There is
  // at most one (EG_CHECK). A push that would save more than `preimage_bytes_max` before its change
  // makes the cut kLost, and continues.
  struct CutInfo {
    std::uint64_t rows = 0, waiting = 0;  // the exact contents of all slices together
    std::uint64_t step = 0;               // the table's time, for RestoreStep
  };
  CutInfo BeginCut(std::uint64_t preimage_bytes_max);
  enum class CutState { kNone, kOpen, kLost };
  CutState cut_state() const;
  // TableCut::NextSlice; false without a cut. After false, cut_state() tells the end of the cut
  // from its loss, which makes the slices void that were handed out.
  bool NextSlice(std::uint64_t bytes_max, TableSlice* slice);
  void EndCut();  // at any time; without a cut it does nothing

  // Appends rows to a table that has had no push yet. InvalidArgument: a duplicate id, lengths that
  // do not fit, or numbers out of range. ResourceExhausted: above the server's limit. After an
  // error the table must be destroyed. Restored rows may be above bytes_max, which may be lower
  // than it was: the next push that makes a row meets the limit.
  absl::Status Restore(const RestoredRows& rows);
  absl::Status Restore(const RestoredWaiting& waiting);
  // Sets the table's time to CutInfo::step. Without it, the time is the highest restored stamp.
  absl::Status RestoreStep(std::uint64_t step);

  const TableSettings& settings() const;
  std::uint32_t dimension() const { return settings().dimension; }
  std::uint32_t state_per_row() const;
  bool counts_per_row() const;  // The optimizer needs each row's number of gradients.
  bool stamps() const;          // TTL or LRU is on.
  std::uint64_t rows() const;
  std::uint64_t waiting() const;
  // The number that is compared with bytes_max: a function of the numbers of rows and waiting ids,
  // so that it does not depend on the table's history.
  std::uint64_t bytes_of(std::uint64_t rows, std::uint64_t waiting) const;
  TableStats stats() const;
  std::vector<HotId> Hottest(std::size_t count) const;  // by falling `pushes`

  // Sums over rows, mod 2^64, that do not depend on order or layout: the digests of a table's
  // partitions add up.
  struct Digests {
    std::uint64_t values = 0, state = 0;
    std::uint64_t counters = 0;  // ids with stamps and counts, of rows and of waiting ids
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
  std::unique_ptr<TableCut> cut_;  // null: none
  HotIds hot_;
  TableStats counted_;  // only what is counted since the table is held
  Phase phase_ = Phase::kIdle;
};

}  // namespace evergrad::ps_server::storage

// One partition of an embedding table: the rows of one slot, each under a 64-bit id, made by pushes
// and read by pulls.
//
// Single writer: every method is called from the shard's executor. No lock, no clock, no randomness
// but the seeded. What is answered, kept and dropped is a function of the contents of the calls, in
// their order, and never of where anything lies in memory or of whether a cut is taken: a table
// that was restored from a cut goes on as the one that was cut. (One exception, which is none of
// ours: the server's budget is shared with other tables, so what happens at that limit depends on
// them.)
//
// A push has two halves, as a shard's has: Prepare does all that can fail and changes nothing that
// can be seen; Apply cannot fail. Between them, and until Apply has ended, nobody may look: Read,
// cuts, Restore, digests and stats are EG_CHECKed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tensor/wire_type.h"
#include "ps_server/optimizer/optimizer.h"
#include "ps_server/storage/initializer.h"
#include "ps_server/storage/memory_budget.h"

namespace evergrad::ps_server::storage {

// A row's values and optimizer numbers together have at most as many floats (so 16 KiB), and so has
// a gradient.
inline constexpr std::uint32_t kRowFloatsMax = 4096;
// What an id costs in the index as `bytes_max` counts it: 16 bytes (with a stamp; 12.8 without) at
// a load of two thirds, where the index is at its emptiest.
inline constexpr std::uint64_t kIndexBytesPerId = 24;

struct TableSettings {
  std::string name;
  std::uint32_t dimension = 0;
  InitializerSettings initializer;  // fans: of one row; seed: the job's
  optimizers::Settings optimizer;
  std::uint32_t admit_after =
      1;                  // the push to an id that makes its row; those before only count. 0 is 1
  float default_row = 0;  // admit_after > 1: each element of what an id without a row reads
  std::uint64_t ttl_steps = 0;  // rows and waiting ids whose last push is older than this many plan
                                // steps are dropped; 0: never
  std::uint64_t bytes_max =
      0;  // of THIS partition: rows, index and counters, by their number (bytes_of()); 0: none
  bool evict_lru = false;  // at bytes_max or the server's limit: the rows that were pushed to least
                           // recently give way
};

// What a prepared push will do, decided before it does.
struct PushOutcome {
  std::uint64_t rows_updated = 0;     // that were there
  std::uint64_t rows_made = 0;        // with their initial values, and updated
  std::uint64_t ids_waiting = 0;      // counted only: their gradients are dropped (admit_after)
  std::uint64_t evicted_ttl = 0;      // rows
  std::uint64_t evicted_lru = 0;      // rows
  std::uint64_t waiting_dropped = 0;  // waiting ids, by TTL or to give way
  // Ids that were twice in the push: each extra one. Their gradients are summed in order of
  // appearance; the push counts once.
  std::uint64_t duplicates = 0;
  std::uint64_t evicted() const { return evicted_ttl + evicted_lru; }
};

// A piece of a cut: rows, and ids that wait for their admission. In no order. `counts` of rows:
// gradients applied (0 where the optimizer needs none); of waiting ids: pushes counted. Stamps:
// global step of the last push (0 without TTL and LRU).
struct TableSlice {
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> stamps, counts;
  std::vector<float> values;   // ids.size() x dimension
  std::vector<float> numbers;  // ids.size() x numbers_per_row
  std::vector<std::int64_t> waiting_ids;
  std::vector<std::uint32_t> waiting_stamps, waiting_counts;
  std::uint64_t bytes() const;
  void clear();
};

// Rows from outside, as a snapshot file has them; nothing in them is trusted.
struct RestoredRows {
  std::span<const std::int64_t> ids;
  std::span<const std::uint64_t> stamps, counts;  // as many
  std::span<const float> values, numbers;         // ids.size() x dimension, x numbers_per_row
};
struct RestoredWaiting {
  std::span<const std::int64_t> ids;
  std::span<const std::uint64_t> stamps, counts;
};

struct TableStats {
  std::uint64_t rows = 0, waiting = 0;  // at present
  // At present: what the rows need, beside the room that is free for more of them; `memory_bytes`
  // is all that is held, free room included.
  std::uint64_t value_bytes = 0, number_bytes = 0, index_bytes = 0, counter_bytes = 0,
                memory_bytes = 0;
  std::uint64_t index_places = 0;
  double index_load() const {
    return index_places == 0
               ? 0
               : static_cast<double>(rows + waiting) / static_cast<double>(index_places);
  }
  // Since this process holds the table.
  std::uint64_t admitted = 0, evicted_ttl = 0, evicted_lru = 0, waiting_dropped = 0,
                gradients_dropped = 0, duplicates = 0, refused = 0;
};

// Ids that pushes name most, counted in a sample: `pushes` estimates how many pushes named the id,
// by at most `error` too many.
struct HotId {
  std::int64_t id = 0;
  std::uint64_t pushes = 0, error = 0;
};

class EmbeddingTable {
 public:
  // `budget` (may be null: none) is shared by all tables of a server. InvalidArgument: unknown
  // initialiser or optimizer, numbers out of range.
  static absl::StatusOr<std::unique_ptr<EmbeddingTable>> Create(
      const TableSettings& settings, std::shared_ptr<MemoryBudget> budget);
  ~EmbeddingTable();
  EmbeddingTable(const EmbeddingTable&) = delete;
  EmbeddingTable& operator=(const EmbeddingTable&) = delete;

  // ids.size() x dimension floats to `out`, in the order of the ids; a duplicate id is written
  // again. An id without a row reads its initial value, f(seed, table name, id), or `default_row`
  // when ids wait for their admission. Changes nothing. `wire`: converted to it (tensor/convert.h);
  // `out` may then lie at any address.
  void Read(std::span<const std::int64_t> ids, float* out) const {
    Read(ids, tensor::WireType::kFloat32, reinterpret_cast<std::byte*>(out));
  }
  void Read(std::span<const std::int64_t> ids, tensor::WireType wire, std::byte* out) const {
    ReadAll({{this, ids, wire, out}});
  }
  // Several reads, of several tables: the memory is asked for the rows of the next one while those
  // of the one before are on their way.
  struct Reading {
    const EmbeddingTable* table = nullptr;
    std::span<const std::int64_t> ids;
    tensor::WireType wire = tensor::WireType::kFloat32;
    std::byte* out = nullptr;
  };
  static void ReadAll(std::span<const Reading> readings);
  static void ReadAll(std::initializer_list<Reading> readings) {
    ReadAll(std::span(readings.begin(), readings.size()));
  }

  // All that can fail. ResourceExhausted: above bytes_max or the server's limit with nothing that
  // may give way, or no memory; the table is as it was. InvalidArgument: global_step does not fit
  // 32 bits. `global_step` may go back a little: the table's time is the highest that it has seen,
  // and a row's stamp never falls. OK must be followed by Apply until !applying(), or by Cancel.
  absl::StatusOr<PushOutcome> Prepare(std::span<const std::int64_t> ids, std::uint64_t global_step);
  void Cancel();
  // In pieces: at least one row and at most about `bytes_max` of gradient at a time (the first one
  // drops what is evicted). `gradient`: ids.size() x dimension floats in the order of Prepare's
  // ids, the same for every piece. Returns the bytes of gradient dealt with. `wire`: of that type,
  // at any address.
  std::uint64_t Apply(const float* gradient, std::uint64_t bytes_max) {
    return Apply(tensor::WireType::kFloat32, reinterpret_cast<const std::byte*>(gradient),
                 bytes_max);
  }
  std::uint64_t Apply(tensor::WireType wire, const std::byte* gradient, std::uint64_t bytes_max);
  bool applying() const { return phase_ != Phase::kIdle; }

  // A cut: the table as it is at BeginCut, handed out in pieces between pushes. One at a time
  // (EG_CHECK). What a push changes or drops before it was handed out is saved first, up to
  // `preimage_bytes_max`: beyond, the cut is lost and the push goes on. Costs a bit for each row.
  struct CutInfo {
    std::uint64_t rows = 0, waiting = 0;  // exactly what the slices will hold
    std::uint64_t step = 0;               // the table's time: Restored with it
  };
  CutInfo BeginCut(std::uint64_t preimage_bytes_max);
  enum class CutState { kNone, kOpen, kLost };
  CutState cut_state() const;
  // Fills `slice` (cleared first; its memory is reused) with about `bytes_max` at most, at least
  // one row. False: that was the last of it, or the cut is lost (cut_state() says which; what was
  // handed out is void then). O(bytes_max), whatever the table's size.
  bool NextSlice(std::uint64_t bytes_max, TableSlice* slice);
  void EndCut();  // at any time; without a cut it does nothing

  // Appends to a table that has had no push yet. InvalidArgument: an id that is there already,
  // lengths that do not fit, numbers out of range. ResourceExhausted: above the server's limit.
  // After an error the table is good for nothing but its end. What was there is taken though it be
  // above bytes_max, which may be less than it was: the next push that makes a row finds it so.
  absl::Status Restore(const RestoredRows& rows);
  absl::Status Restore(const RestoredWaiting& waiting);
  // CutInfo::step; without it the highest stamp that was restored counts.
  absl::Status RestoreStep(std::uint64_t step);

  const TableSettings& settings() const { return settings_; }
  std::uint32_t dimension() const { return settings_.dimension; }
  std::uint32_t numbers_per_row() const { return numbers_; }
  bool counts_per_row() const;  // the optimizer needs each row's number of gradients
  bool stamps() const;          // TTL or LRU
  std::uint64_t rows() const;
  std::uint64_t waiting() const;
  // What bytes_max is compared with: a function of how many rows and waiting ids there are, so that
  // it does not depend on how the table came about.
  std::uint64_t bytes_of(std::uint64_t rows, std::uint64_t waiting) const;
  TableStats stats() const;
  std::vector<HotId> Hottest(std::size_t count) const;  // falling

  // Sums over rows, mod 2^64, that do not depend on order or layout; of partitions they add up.
  struct Digests {
    std::uint64_t values = 0, numbers = 0;
    std::uint64_t counters = 0;  // ids with stamps and counts, of rows and of waiting ids
    friend bool operator==(const Digests&, const Digests&) = default;
  };
  Digests Digest() const;  // O(rows)

 private:
  struct Parts;  // index, arena, plan of the push, cut
  enum class Phase { kIdle, kPrepared, kApplying };
  EmbeddingTable(const TableSettings& settings, std::shared_ptr<MemoryBudget> budget);

  TableSettings settings_;
  std::uint32_t numbers_ = 0;
  Phase phase_ = Phase::kIdle;
  std::unique_ptr<Parts> parts_;
};

}  // namespace evergrad::ps_server::storage

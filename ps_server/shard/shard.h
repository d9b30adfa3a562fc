// One shard: fence -> ledger -> check and reserve -> apply -> lsn+1, in one turn (LEDGER lines 6 to
// 13, 24).
//
// Single writer: every method is called from the shard's own executor (or the simulation's only
// thread). No clock, no scheduling order, no randomness but the seeded: apply is a function of
// (state, record). Plain structs instead of protobuf, so that the simulation runs this very class.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/base/interval_set.h"
#include "common/tensor/tensor.h"
#include "common/tensor/wire_type.h"
#include "ps_server/ledger/ledger.h"
#include "ps_server/optimizer/optimizer.h"
#include "ps_server/storage/dense_array.h"
#include "ps_server/storage/embedding_table.h"
#include "ps_server/storage/initializer.h"

namespace evergrad::ps_server {

enum class UpdateKind { kGradient, kMovingAverage, kSkip };

enum class PushCode {
  kApplied,
  kDuplicate,
  kStale,
  kSuperseded,
  kRefused,
  kBusy,
  kOverBudget,
  kInvalid
};

// Which rows of which tables a section of a slot is about: rows[k] of tables[k], which rise; `ids`
// in that order, and so is what goes with them.
struct TableRows {
  bool present = false;  // the section has ids
  std::span<const std::int64_t> ids;
  std::span<const std::uint32_t> tables, rows;
};

struct Push {
  ShardEpoch epoch;
  ClosureId closure;
  UpdateIndex update;
  Attempt attempt;
  UpdateKind kind = UpdateKind::kGradient;
  std::uint64_t global_step = 0;
  std::uint64_t rows = 0;              // as declared
  std::span<const std::byte> payload;  // as received; length checked by the shard; of float32:
                                       // 4-byte aligned or refused. kSkip: empty
  TableRows rows_of;                   // of a slot; a dense shard refuses it
  absl::string_view skip_reason;       // kSkip: 1 to 64 bytes
  // What the payload is of: the variable's wire type; of a slot that of the tables it names,
  // kSeveral where they have several. A kSkip may leave it out.
  tensor::WireType wire = tensor::WireType::kFloat32;
  absl::string_view defect;  // what a decoder before the shard found wrong: kInvalid with this
                             // text, at line 11 and not before
  // [35] Not "": its sender has not proved that it was granted to him, and why not: kInvalid with
  // this text, before the ledger is looked at.
  absl::string_view unproved = {};
};
struct PushResult {
  PushCode code = PushCode::kInvalid;
  std::uint64_t lsn = 0;
  std::string message;  // kInvalid, kRefused, kBusy, kOverBudget: "gradient bytes mismatch:
                        // variable=dense/kernel shard=3 want=4096 got=12"
};

enum class PullCode { kValues, kUnchanged, kStale };
struct Pull {
  ShardEpoch epoch;
  bool has = false;
  MapVersion have_start;
  std::uint64_t have_vlsn = 0;
  TableRows rows_of = {};  // of a slot, which never answers kUnchanged; a dense shard refuses it
  // Of a slot. Null: the rows are copied at once, to memory of their own. Else Read asks here for
  // memory for so many bytes, aligned for floats, or none and why; to be read into that by
  // EmbeddingTable::ReadAll before anything at the shard changes is then what is appended to
  // `readings`.
  std::function<std::byte*(std::uint64_t bytes, std::string* why_not)> room = nullptr;
  std::vector<storage::EmbeddingTable::Reading>* readings = nullptr;
};
struct PullResult {
  PullCode code = PullCode::kStale;
  MapVersion start;
  std::uint64_t vlsn = 0;
  absl::InlinedVector<tensor::SharedBytes, 1>
      chunks;  // kValues: the whole shard in row order, references, never a copy; of a slot the
               // rows asked for, copied
  tensor::WireType wire =
      tensor::WireType::kFloat32;  // kValues, kUnchanged: of the values, as Push's
  std::string invalid;  // not "": the section does not fit the shard, and the rest means nothing
};

// Slot `slot` of `slots` of all tables of a job.
struct SlotSettings {
  std::uint32_t slot = 0, slots = 0;
  std::vector<storage::TableSettings>
      tables;  // by index in the plan; bytes_max of this slot's partition
  std::vector<tensor::WireType> wire = {};  // by index; none: all float32
  tensor::WireType wire_of(std::size_t table) const {
    return table < wire.size() ? wire[table] : tensor::WireType::kFloat32;
  }
};

// A dense partition, or a slot: then `slot` is set, `variable` says so for messages, and shape,
// rows, initializer and optimizer mean nothing.
struct ShardSettings {
  JobUid job;
  ShardId shard;
  std::string variable;
  tensor::Shape variable_shape;      // of the whole variable
  std::uint32_t variable_index = 0;  // its place in the plan
  std::uint64_t row_begin = 0, row_end = 0;
  InitializerSettings initializer;
  optimizers::Settings optimizer;
  std::optional<SlotSettings> slot = std::nullopt;
  tensor::WireType wire = tensor::WireType::kFloat32;  // of gradients and values on their way; held
                                                       // and computed is float32
};

// A piece of a slot's cut: some rows of one table.
struct SlotSlice {
  std::uint32_t table = 0;
  storage::TableSlice rows;
  bool end = false;  // that was all, and this is empty
};

class Contents;

// One moment of a shard, between two of its turns: everything of lines 6 and 7, so that values and
// slots are exactly the effect of the updates in the ledger beside them (P6). Values and slots are
// references to chunks: while a cut is held, applies write out of place, and what they replace
// stays in memory: at most bytes(). Made on the shard's executor; read and dropped on any thread.
// A slot's rows are not here: they are captured slice by slice after the moment (Shard::NextSlice),
// with what pushes have changed since saved before it changed.
struct ShardCut {
  std::shared_ptr<const ShardSettings> settings;  // shared with the shard: fixed for the job
  ShardEpoch epoch;
  MapVersion start;
  std::uint64_t lsn = 0, vlsn = 0, updates_applied = 0;
  std::map<std::string, std::uint64_t> skips;
  Ledger ledger;
  storage::DenseArray values;
  std::vector<storage::DenseArray> slots;
  // Of a slot: rows and waiting ids of each table at that moment, and where their slices come from:
  // asked until it gives an empty one. Blocks; any thread but the shard's. Aborted: the cut was
  // dropped, because it took too long. Set by whoever drives the shard's executor.
  std::uint64_t serial = 0;  // of the cut, for NextSlice
  std::vector<std::uint64_t> table_rows, table_filtered, table_steps;
  std::uint64_t table_bytes = 0;
  std::function<absl::StatusOr<SlotSlice>()> next_slice;
  // Of a slot that was read from its file: whole.
  std::vector<std::shared_ptr<storage::EmbeddingTable>> tables;
  std::uint64_t bytes() const;  // of values, slots and ledger; of a slot what it had then
};

// Closures open at one shard: far above what the coordinator ever opens (line 31), so that a
// stranger's pushes cannot grow a ledger without end. A push that would open one more is answered
// kBusy.
inline constexpr std::size_t kOpenClosuresMax = 64 * 1024;
inline constexpr std::uint64_t kPreimageBytesMax = 256ull << 20;
// Reasons counted apart; further ones are counted as "other".
inline constexpr std::size_t kSkipReasonsMax = 16;

class Shard {
 public:
  // The seed's state: initialised values, slots as the optimizer begins with them, empty ledger but
  // for `refused` (line 21). InvalidArgument: unknown initialiser or optimizer, or one for tables
  // only, rows out of the shape, bytes above the limits. ResourceExhausted: no memory. `pool` (may
  // be null: the heap) is shared by all shards of a server: blocks for writing out of place come
  // from it; `budget` (may be null: none) by all tables of a server.
  static absl::StatusOr<std::unique_ptr<Shard>> FromSeed(
      const ShardSettings& settings, ShardEpoch epoch, MapVersion start, IntervalSet refused,
      std::shared_ptr<storage::ChunkPool> pool = nullptr,
      std::shared_ptr<storage::MemoryBudget> budget = nullptr);
  // A cut's state under a new owner (lines 21, 22, 28), bit for bit: values, slots, counters, lsn,
  // and the ledger, which `refused` is added to. `settings` are those of the job now: rates may
  // differ from the cut's. InvalidArgument, which names both: the cut is of other rows or another
  // variable, or its slots are not those of the optimizer.
  static absl::StatusOr<std::unique_ptr<Shard>> Restore(const ShardSettings& settings, ShardCut cut,
                                                        ShardEpoch epoch, MapVersion start,
                                                        const IntervalSet& refused);
  ~Shard();

  PushResult Apply(const Push& push);
  // Apply in pieces, for the executor's turns: BeginApply does everything but the arithmetic of an
  // admitted gradient, which ContinueApply does for at least one chunk and at most about
  // `bytes_max` at a time; it returns the bytes applied. In ledger, lsn and counters the update is
  // there from BeginApply on; its values and slots are whole once applying() is false, and until
  // then nobody may look: Apply, BeginApply, Read, Snapshot, digests and Values are EG_CHECKed. The
  // caller keeps push.payload until then. Seal and Close fit in between: neither touches a value.
  // Destroying the shard drops the state whole.
  PushResult BeginApply(const Push& push);
  bool applying() const;
  std::uint64_t ContinueApply(std::uint64_t bytes_max);
  PullResult Read(const Pull& pull) const;
  // Line 20a: from now on every push is answered kRefused; nothing enters the ledger.
  void Seal() { sealed_ = true; }
  // Line 22: from now on every push and pull is answered kStale and every Close ignored; nothing
  // changes any more. An apply in progress is gone on with, and is part of what is moved.
  void Stop() { stopped_ = true; }
  // Line 24: false ("ignored") if `epoch` differs or start > version.
  bool Close(ShardEpoch epoch, MapVersion version, const IntervalSet& done,
             const IntervalSet& refused);

  // An independent copy of everything of lines 6 and 7 (a snapshot: values by reference). Neither
  // sealed nor stopped, no duplicates counted: they belong to the holder. Used by moves and the
  // simulation.
  std::unique_ptr<Shard> Snapshot() const;
  // For a snapshot file (line 27): one reference for each 256 KiB, and a copy of the ledger. Not in
  // the middle of an apply (EG_CHECK). A slot: what pushes change before it is captured is kept
  // apart, up to `preimage_bytes_max`; then the cut is dropped. One cut at a time: the next one, or
  // EndCut, ends it.
  ShardCut Cut(std::uint64_t preimage_bytes_max = kPreimageBytesMax) const;
  // The next piece of a slot's cut, about `bytes_max`; only while nothing is being applied.
  // Aborted: that cut is no more.
  absl::StatusOr<SlotSlice> NextSlice(std::uint64_t serial, std::uint64_t bytes_max) const;
  void EndCut(std::uint64_t serial) const;
  // Gives a snapshot's state a new owner (line 21 or 22).
  void BecomeOwned(ShardEpoch epoch, MapVersion start, const IntervalSet& refused);

  const ShardSettings& settings() const { return *settings_; }
  ShardEpoch epoch() const { return epoch_; }
  MapVersion start() const { return start_; }
  std::uint64_t lsn() const { return lsn_; }
  std::uint64_t vlsn() const { return vlsn_; }
  bool sealed() const { return sealed_; }
  bool stopped() const { return stopped_; }
  const Ledger& ledger() const { return ledger_; }
  std::uint64_t updates_applied() const {
    return updates_applied_;
  }  // in the present state, SKIP not counted
  std::uint64_t duplicates() const { return duplicates_; }  // answered since this process holds it
  const std::map<std::string, std::uint64_t>& skips() const {
    return skips_;
  }  // by reason, in the present state
  std::uint64_t value_bytes() const;
  std::uint64_t slot_bytes() const;
  // Sum over elements of Mix(index in the whole variable, float bits) mod 2^64: adds up over any
  // cut. Slots: the same over all slots (slot k adds k * 2^56 to the index, so that two slots
  // cannot be exchanged unseen).
  std::uint64_t Digest() const;
  std::uint64_t SlotDigest() const;
  // Values in row order, copied: tests and digests.
  std::vector<float> Values() const;
  // Of a slot, by index in the plan; none of a dense shard. Not in the middle of an apply.
  std::vector<const storage::EmbeddingTable*> Tables() const;

 private:
  Shard();
  PushResult Invalid(std::string message) const;
  const std::string& Where() const;  // for messages, made when first asked for

  std::shared_ptr<const ShardSettings> settings_;  // shared with snapshots: fixed for the job
  ShardEpoch epoch_;
  MapVersion start_;
  std::uint64_t lsn_ = 0, vlsn_ = 0, updates_applied_ = 0;
  mutable std::uint64_t duplicates_ = 0;
  mutable std::string where_;
  bool sealed_ = false, stopped_ = false;
  std::map<std::string, std::uint64_t> skips_;
  Ledger ledger_;
  std::unique_ptr<Contents> contents_;
};

}  // namespace evergrad::ps_server

// One shard. A push passes these stages in order: the fence (its epoch), the seal, the proof of its
// grant, the ledger, the check and reservation of memory, the record in the ledger with lsn + 1,
// and the apply (LEDGER lines 6 to 13, 24, 35).
//
// The class has a single writer: only the shard's own executor (or the only thread of the
// simulation) calls its methods. An apply is a function of (state, push): it reads no clock, and
// its result does not depend on scheduling. The seed is the only source of randomness. The
// interface has plain structs instead of protobuf messages, so that the simulation uses the same
// class.
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
#include "ps_server/storage/row_reader.h"

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

// The rows that a section of a request names, if its shard is a slot. (A section is the part of a
// request for one shard.) The section names rows[k] ids of the table tables[k]. Table numbers are
// ascending. The ids, and the values or gradients of their rows, are in the order of the tables.
struct TableRows {
  bool present = false;  // true if the section has ids
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
  std::uint64_t rows = 0;  // number of rows that the sender declares
  // The received bytes; empty for kSkip. The shard checks the length, and for float32 the alignment
  // of 4 bytes.
  std::span<const std::byte> payload;
  TableRows rows_of;              // for slots only; a dense shard refuses rows
  absl::string_view skip_reason;  // for kSkip, 1 to 64 bytes
  // The type of the payload: the variable's wire type, or for a slot the wire type of the named
  // tables, or kSeveral if they have several wire types. A kSkip may omit the type.
  tensor::WireType wire = tensor::WireType::kFloat32;
  // The error that the decoder found, or "". If there is an error and the ledger admits the push,
  // the answer is kInvalid with this text (LEDGER line 11).
  absl::string_view defect;
  // The reason why the sender's proof of its grant is not valid (LEDGER line 35), or "". If there
  // is a reason, the answer is kInvalid with the reason as its message, and the ledger is not read.
  absl::string_view unproved = {};
};
struct PushResult {
  PushCode code = PushCode::kInvalid;
  std::uint64_t lsn = 0;
  // For kInvalid, kRefused, kBusy and kOverBudget, a message such as "gradient bytes mismatch:
  // variable=dense/kernel shard=3 want=4096 got=12".
  std::string message;
};

enum class PullCode { kValues, kUnchanged, kStale };
struct Pull {
  ShardEpoch epoch;
  bool has = false;
  MapVersion have_start;
  std::uint64_t have_vlsn = 0;
  // The rows to read from a slot. A slot never answers kUnchanged. A dense shard refuses a pull
  // that names rows. The ids must outlive the PullPlan and its readings.
  TableRows rows_of = {};
};
struct PullResult {
  PullCode code = PullCode::kStale;
  MapVersion start;
  std::uint64_t vlsn = 0;
  // For kValues, references to the whole shard in row order. For a slot, copies of the rows that
  // the pull names.
  absl::InlinedVector<tensor::SharedBytes, 1> chunks;
  // For kValues and kUnchanged, the type of the values, as in Push.
  tensor::WireType wire = tensor::WireType::kFloat32;
  // If not "", the section does not fit the shard, and the other fields have no meaning.
  std::string invalid;
};

// The answer of Shard::Read. The rows of a slot are not copied yet, because the caller provides
// their memory, if the limit of the answer allows it.
struct PullPlan {
  PullResult result;             // complete for a dense shard; for a slot, without its rows
  std::uint64_t rows_bytes = 0;  // size of the rows; if 0, `result` is the whole answer
  // The readings, in the order of the answer. ReadTo sets their `out`.
  absl::InlinedVector<storage::RowReading, 2> rows;

  // Appends the readings that copy the rows to `out`, which has `rows_bytes` bytes and is aligned
  // for floats. The caller must run storage::ReadRows before it changes the shard.
  void ReadTo(std::byte* out, std::vector<storage::RowReading>* readings) const;
};

// The slot with the number `slot` of a job with `slots` slots.
struct SlotSettings {
  std::uint32_t slot = 0, slots = 0;
  // The tables by index in the plan. bytes_max of a table is the limit of this slot's partition.
  std::vector<storage::TableSettings> tables;
  std::vector<tensor::WireType> wire = {};  // per table; if empty, all are float32
  tensor::WireType wire_of(std::size_t table) const {
    return table < wire.size() ? wire[table] : tensor::WireType::kFloat32;
  }
};

// A dense partition, or a slot. For a slot, `slot` is set, `variable` is the name in messages, and
// shape, rows, initializer and optimizer are not used.
struct ShardSettings {
  JobUid job;
  ShardId shard;
  std::string variable;
  tensor::Shape variable_shape;      // of the whole variable
  std::uint32_t variable_index = 0;  // index of the variable in the plan
  std::uint64_t row_begin = 0, row_end = 0;
  InitializerSettings initializer;
  optimizers::Settings optimizer;
  std::optional<SlotSettings> slot = std::nullopt;
  // The type of gradients and values on the wire. The shard holds and computes float32.
  tensor::WireType wire = tensor::WireType::kFloat32;
};

// A piece of a slot's cut: some rows of one table.
struct SlotSlice {
  std::uint32_t table = 0;
  storage::TableSlice rows;
  bool end = false;  // the cut has no further slice, and this slice is empty
};

class Contents;

// The state of a shard at one moment between two of its sections, with everything that LEDGER lines
// 6 and 7 list. Values and optimizer state are exactly the effect of the updates in the ledger of
// the cut (P6). Values and state are references to chunks. While a cut is held, an apply writes new
// values beside the referenced chunks, and the replaced chunks stay in memory. They have at most
// bytes() bytes. The shard's executor makes a cut; any thread may read and drop it. The rows of a
// slot are not part of the struct. Shard::NextSlice captures them later, slice by slice, and pushes
// save a row before they change it.
struct ShardCut {
  std::shared_ptr<const ShardSettings> settings;  // shared with the shard: fixed for the job
  ShardEpoch epoch;
  MapVersion start;
  std::uint64_t lsn = 0, vlsn = 0, updates_applied = 0;
  std::map<std::string, std::uint64_t> skips;
  Ledger ledger;
  storage::DenseArray values;
  std::vector<storage::DenseArray> states;
  // For slots: the number of rows and of waiting ids of each table at the moment of the cut, and
  // the source of the slices, which ShardCuts sets. Call next_slice until it returns an empty
  // slice. next_slice blocks, so the shard's thread must not call it. next_slice returns Aborted if
  // the cut was dropped because pushes changed too many rows before their slices.
  std::uint64_t serial = 0;  // number of the cut, for NextSlice
  std::vector<std::uint64_t> table_rows, table_filtered, table_steps;
  std::uint64_t table_bytes = 0;
  std::function<absl::StatusOr<SlotSlice>()> next_slice;
  // The whole tables, for a slot that was read from its file.
  std::vector<std::shared_ptr<storage::EmbeddingTable>> tables;
  std::uint64_t bytes() const;  // size of values, optimizer state and ledger, or of a slot's tables
};

// Limit of the closures that may be open at one shard. The coordinator opens far fewer closures
// (LEDGER line 31). The limit bounds the memory that pushes of an unknown sender can use. A push
// that would exceed the limit is answered kBusy.
inline constexpr std::size_t kOpenClosuresMax = 64 * 1024;
inline constexpr std::uint64_t kPreimageBytesMax = 256ull << 20;
// Limit of the skip reasons that are counted separately. Further reasons are counted as "other".
inline constexpr std::size_t kSkipReasonsMax = 16;

class Shard {
 public:
  // Returns a shard with initial values and optimizer state, and a ledger that holds only `refused`
  // (LEDGER line 21). Returns InvalidArgument if the initializer or optimizer is unknown or for
  // tables only, if the rows are outside the shape, or if the bytes exceed the limits. Returns
  // ResourceExhausted if memory is exhausted. All shards of a server share `pool`, which provides
  // blocks for writes beside the old values; if `pool` is null, the heap provides them. All tables
  // of a server share `budget`; if `budget` is null, there is no limit.
  static absl::StatusOr<std::unique_ptr<Shard>> FromSeed(
      const ShardSettings& settings, ShardEpoch epoch, MapVersion start, const IntervalSet& refused,
      const std::shared_ptr<storage::ChunkPool>& pool = nullptr,
      const std::shared_ptr<storage::MemoryBudget>& budget = nullptr);
  // Returns the state of a cut under a new owner (LEDGER lines 21, 22, 28), bit for bit: values,
  // states, counters, lsn, and the ledger, to which `refused` is added. `settings` are the present
  // settings of the job, whose learning rates may differ from those of the cut. Returns
  // InvalidArgument, which names the expected and the found property, if the cut has other rows,
  // another variable or the state of another optimizer.
  static absl::StatusOr<std::unique_ptr<Shard>> Restore(const ShardSettings& settings, ShardCut cut,
                                                        ShardEpoch epoch, MapVersion start,
                                                        const IntervalSet& refused);
  ~Shard();

  PushResult Apply(const Push& push);
  // BeginApply and ContinueApply apply a push in pieces, so that the executor can run other tasks
  // in between. BeginApply does everything except the arithmetic of an admitted gradient.
  // ContinueApply does the arithmetic, for at least one chunk and about `bytes_max` bytes per call,
  // and returns the number of applied bytes. Ledger, lsn and counters contain the update after
  // BeginApply. Values and optimizer state contain the whole update once applying() is false. While
  // applying() is true, the caller must keep push.payload, and calls of Apply, BeginApply, Read,
  // Snapshot, Cut, Values and of the functions for digests fail an EG_CHECK. Seal and Close may be
  // called during an apply, since they change no value. Destroying the shard drops the whole state.
  PushResult BeginApply(const Push& push);
  bool applying() const;
  std::uint64_t ContinueApply(std::uint64_t bytes_max);
  // Checks the pull and plans its answer. Changes nothing.
  PullPlan Read(const Pull& pull) const;
  // After this call the shard answers every push with kRefused, and its ledger gets no update
  // (LEDGER line 20a).
  void Seal() { sealed_ = true; }
  // After this call the shard answers every push and pull with kStale and ignores every Close, so
  // its state does not change any more (LEDGER line 22). An apply in progress continues, and its
  // update moves with the shard.
  void Stop() { stopped_ = true; }
  // Applies a Close of the coordinator (LEDGER line 24). Returns false, and ignores the call, if
  // `epoch` differs or start > version.
  bool Close(ShardEpoch epoch, MapVersion version, const IntervalSet& done,
             const IntervalSet& refused);

  // Returns an independent copy of the state (LEDGER lines 6 and 7), with references to the values.
  // The copy is not sealed, not stopped, and has counted no duplicates, because these properties
  // belong to the present owner. Only tests and the simulation use Snapshot.
  std::unique_ptr<Shard> Snapshot() const;
  // Returns a cut for a snapshot file (LEDGER line 27): one reference for each 256 KiB, and a copy
  // of the ledger. No update may be in progress (EG_CHECK). For a slot, a push saves the rows that
  // it changes and that no slice has captured yet. If the saved rows exceed `preimage_bytes_max`,
  // the cut is dropped. A shard has one cut at a time, which ends at the next Cut or at EndCut.
  ShardCut Cut(std::uint64_t preimage_bytes_max = kPreimageBytesMax) const;
  // Returns the next piece of a slot's cut, of about `bytes_max` bytes, or Aborted if the cut has
  // ended. No update may be in progress (EG_CHECK).
  absl::StatusOr<SlotSlice> NextSlice(std::uint64_t serial, std::uint64_t bytes_max) const;
  void EndCut(std::uint64_t serial) const;
  // Makes this shard, which has the state of a snapshot, the shard of a new owner with this epoch
  // and start (LEDGER line 21 or 22).
  void BecomeOwned(ShardEpoch epoch, MapVersion start, const IntervalSet& refused);

  const ShardSettings& settings() const { return *settings_; }
  ShardEpoch epoch() const { return epoch_; }
  MapVersion start() const { return start_; }
  std::uint64_t lsn() const { return lsn_; }
  std::uint64_t vlsn() const { return vlsn_; }
  bool sealed() const { return sealed_; }
  bool stopped() const { return stopped_; }
  const Ledger& ledger() const { return ledger_; }
  // Returns the number of updates in the present state, without SKIPs.
  std::uint64_t updates_applied() const { return updates_applied_; }
  std::uint64_t duplicates() const { return duplicates_; }  // DUPLICATE answers of this process
  // Returns the number of SKIPs in the present state, by reason.
  const std::map<std::string, std::uint64_t>& skips() const { return skips_; }
  std::uint64_t value_bytes() const;
  std::uint64_t state_bytes() const;
  // Returns the sum of Mix(index in the whole variable, float bits) over all elements, mod 2^64, so
  // that the digests of a variable's shards add up to the same number for every partition.
  // StateDigest is the sum over all optimizer states. State k adds k * 2^56 to the index, so that
  // the sum changes if two states are exchanged.
  std::uint64_t Digest() const;
  std::uint64_t StateDigest() const;
  // Returns a copy of the values in row order, for tests and digests.
  std::vector<float> Values() const;
  // Returns the tables of a slot, by index in the plan; empty for a dense shard. No update may be
  // in progress (EG_CHECK).
  std::vector<const storage::EmbeddingTable*> Tables() const;

 private:
  Shard();
  PushResult Invalid(std::string message) const;
  const std::string& Where() const;  // the shard's name in messages; made by the first call

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

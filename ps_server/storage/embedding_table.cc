#include "ps_server/storage/embedding_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/optimizers/registry.h"
#include "common/sharding/row_digest.h"
#include "ps_server/storage/push_applier.h"
#include "ps_server/storage/push_plan.h"
#include "ps_server/storage/row_store.h"
#include "ps_server/storage/table_cut.h"

namespace evergrad::ps_server::storage {

EmbeddingTable::EmbeddingTable(std::unique_ptr<RowStore> store)
    : store_(std::move(store)),
      plan_(std::make_unique<PushPlan>(store_.get())),
      applier_(std::make_unique<PushApplier>(store_.get(), plan_.get())) {}

EmbeddingTable::~EmbeddingTable() = default;

absl::StatusOr<std::unique_ptr<EmbeddingTable>> EmbeddingTable::Create(
    const TableSettings& settings, std::shared_ptr<MemoryBudget> budget) {
  const auto bad = [&](absl::string_view what, auto want, auto got) {
    return absl::InvalidArgumentError(absl::StrCat("a table's ", what, " is out of range: table=",
                                                   settings.name, " want=", want, " got=", got));
  };
  if (settings.name.empty()) return bad("name", "some bytes", "none");
  if (absl::Status checked = CheckInitializer(settings.initializer); !checked.ok()) return checked;
  const auto made = optimizer::Optimizer::Create(settings.optimizer);
  if (!made.ok()) return made.status();
  if (made->is_moving_average())
    return bad("optimizer", "an optimizer of gradients", settings.optimizer.type);
  if (settings.dimension == 0 || settings.dimension > optimizers::kRowFloatsMax)
    return bad("dimension", absl::StrCat("1 to ", optimizers::kRowFloatsMax), settings.dimension);
  if (const std::size_t floats = settings.dimension + made->state_per_row(settings.dimension);
      floats > optimizers::kRowFloatsMax)
    return bad("row with its optimizer state",
               absl::StrCat("at most ", optimizers::kRowFloatsMax, " floats"), floats);
  if (settings.admit_after > kCountMax)
    return bad("admit_after", absl::StrCat("at most ", kCountMax), settings.admit_after);
  if (!std::isfinite(settings.default_row))
    return bad("default_row", "a finite number", settings.default_row);
  if (settings.ttl_steps > std::numeric_limits<std::uint32_t>::max())
    return bad("ttl_steps", "below 2^32", settings.ttl_steps);
  if (budget == nullptr) budget = std::make_shared<MemoryBudget>(0);
  TableSettings own = settings;
  own.admit_after = std::max(1u, settings.admit_after);
  return std::unique_ptr<EmbeddingTable>(
      new EmbeddingTable(std::make_unique<RowStore>(own, *made, budget)));
}

const TableSettings& EmbeddingTable::settings() const { return store_->settings; }
std::uint32_t EmbeddingTable::state_per_row() const {
  return static_cast<std::uint32_t>(store_->row_floats - store_->dimension);
}
bool EmbeddingTable::counts_per_row() const { return store_->update.counts_per_row(); }
bool EmbeddingTable::stamps() const { return store_->stamped; }
std::uint64_t EmbeddingTable::rows() const { return store_->rows; }
std::uint64_t EmbeddingTable::waiting() const { return store_->waiting; }
std::uint64_t EmbeddingTable::bytes_of(std::uint64_t rows, std::uint64_t waiting) const {
  return store_->bytes_of(rows, waiting);
}

// ---------------------------------------------------------------- a push

absl::StatusOr<PushOutcome> EmbeddingTable::Prepare(std::span<const std::int64_t> ids,
                                                    std::uint64_t global_step) {
  EG_CHECK(!applying());
  absl::StatusOr<PushOutcome> outcome = plan_->Make(ids, global_step);
  if (absl::IsResourceExhausted(outcome.status())) ++counted_.refused;
  if (!outcome.ok()) return outcome;
  hot_.Add(ids.size(), [&](std::size_t i) { return ids[i]; });
  phase_ = Phase::kPrepared;
  return outcome;
}

void EmbeddingTable::Cancel() {
  EG_CHECK(phase_ == Phase::kPrepared);
  plan_->Cancel();
  phase_ = Phase::kIdle;
}

std::uint64_t EmbeddingTable::Apply(tensor::WireType wire, const std::byte* gradient,
                                    std::uint64_t bytes_max) {
  EG_CHECK(applying());
  if (phase_ == Phase::kPrepared) {
    phase_ = Phase::kApplying;
    applier_->Begin(cut_.get());
    const PushOutcome& outcome = plan_->outcome();
    counted_.admitted += outcome.rows_made;
    counted_.evicted_ttl += outcome.evicted_ttl;
    counted_.evicted_lru += outcome.evicted_lru;
    counted_.waiting_dropped += outcome.waiting_dropped;
    counted_.gradients_dropped += outcome.ids_waiting;
    counted_.duplicates += outcome.duplicates;
  }
  const std::uint64_t bytes = applier_->Continue(wire, gradient, bytes_max, cut_.get());
  if (applier_->done()) phase_ = Phase::kIdle;
  return bytes;
}

// ---------------------------------------------------------------- cuts

EmbeddingTable::CutInfo EmbeddingTable::BeginCut(std::uint64_t preimage_bytes_max) {
  EG_CHECK(!applying());
  EG_CHECK(cut_ == nullptr);
  cut_ = std::make_unique<TableCut>(store_.get(), preimage_bytes_max);
  return {store_->rows, store_->waiting, store_->step};
}

EmbeddingTable::CutState EmbeddingTable::cut_state() const {
  if (cut_ == nullptr) return CutState::kNone;
  return cut_->lost() ? CutState::kLost : CutState::kOpen;
}

bool EmbeddingTable::NextSlice(std::uint64_t bytes_max, TableSlice* slice) {
  EG_CHECK(!applying());
  if (cut_ != nullptr) return cut_->NextSlice(bytes_max, slice);
  slice->clear();
  return false;
}

void EmbeddingTable::EndCut() { cut_ = nullptr; }

// ---------------------------------------------------------------- restoring

absl::Status EmbeddingTable::Restore(const RestoredRows& from) {
  EG_CHECK(!applying() && cut_state() == CutState::kNone);
  RowStore& s = *store_;
  const std::size_t n = from.ids.size(), state_size = state_per_row();
  const auto bad = [&](absl::string_view what, auto... details) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": table=", s.settings.name, details...));
  };
  if (from.stamps.size() != n || from.counts.size() != n || from.values.size() != n * s.dimension ||
      from.state.size() != n * state_size) {
    return bad("the arrays of restored rows differ in length", " ids=", n,
               " stamps=", from.stamps.size(), " counts=", from.counts.size(),
               " values=", from.values.size(), " state=", from.state.size(),
               " dimension=", s.dimension, " state_per_row=", state_size);
  }
  if (!s.arena_share.TryGrowTo(s.ChargedBytes(s.arena.high_water() + n)) || !s.arena.Reserve(n)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "out of memory for restored rows: table=", s.settings.name, " rows=", s.rows + n));
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kAheadRows < n) s.index.AskFor(s.HashOf(from.ids[i + kAheadRows]));
    if ((from.stamps[i] | from.counts[i]) >> 32 != 0)
      return bad("stamp or count of a restored row does not fit 32 bits", " id=", from.ids[i],
                 " stamp=", from.stamps[i], " count=", from.counts[i]);
    const std::uint64_t hash = s.HashOf(from.ids[i]);
    if (s.index.Find(hash)) return bad("duplicate restored row", " id=", from.ids[i]);
    const RowIndex::Ref e = s.index.Insert(hash);
    if (!e)
      return absl::ResourceExhaustedError(
          absl::StrCat("out of memory for a table's index: table=", s.settings.name));
    e.set_row(s.arena.Take());
    if (s.stamped) {
      e.set_stamp(static_cast<std::uint32_t>(from.stamps[i]));
      s.step = std::max(s.step, e.stamp());
    }
    if (s.update.counts_per_row())
      s.arena.Count(e.row()) = static_cast<std::uint32_t>(from.counts[i]);
    float* const at = s.arena.At(e.row());
    std::memcpy(at, from.values.data() + i * s.dimension, s.dimension * sizeof(float));
    if (state_size != 0)
      std::memcpy(at + s.dimension, from.state.data() + i * state_size, state_size * sizeof(float));
    ++s.rows;
  }
  s.index_share.SetTo(s.index.bytes());
  if (s.index_share.over_limit())
    return absl::ResourceExhaustedError(absl::StrCat(
        "restored rows are above memory_bytes_max: table=", s.settings.name, " rows=", s.rows));
  return absl::OkStatus();
}

absl::Status EmbeddingTable::Restore(const RestoredWaiting& from) {
  EG_CHECK(!applying() && cut_state() == CutState::kNone);
  RowStore& s = *store_;
  const std::size_t n = from.ids.size();
  const auto bad = [&](absl::string_view what, auto... details) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": table=", s.settings.name, details...));
  };
  if (from.stamps.size() != n || from.counts.size() != n)
    return bad("the arrays of restored waiting ids differ in length", " ids=", n,
               " stamps=", from.stamps.size(), " counts=", from.counts.size());
  if (n > 0 && s.settings.admit_after <= 1)
    return bad("restored ids wait for admission in a table that admits at the first push",
               " ids=", n);
  for (std::size_t i = 0; i < n; ++i) {
    if (from.stamps[i] >> 32 != 0 || from.counts[i] == 0 || from.counts[i] > kCountMax)
      return bad("stamp or count of a restored waiting id is out of range", " id=", from.ids[i],
                 " stamp=", from.stamps[i], " count=", from.counts[i]);
    const std::uint64_t hash = s.HashOf(from.ids[i]);
    if (s.index.Find(hash)) return bad("duplicate restored waiting id", " id=", from.ids[i]);
    const RowIndex::Ref e = s.index.Insert(hash);
    if (!e)
      return absl::ResourceExhaustedError(
          absl::StrCat("out of memory for a table's index: table=", s.settings.name));
    // This job may admit ids after fewer pushes than the job that wrote the cut. The count is
    // limited so that the next push to the id admits it.
    e.set_row(kWaiting |
              std::min(static_cast<std::uint32_t>(from.counts[i]), s.settings.admit_after - 1));
    if (s.stamped) {
      e.set_stamp(static_cast<std::uint32_t>(from.stamps[i]));
      s.step = std::max(s.step, e.stamp());
    }
    ++s.waiting;
  }
  s.index_share.SetTo(s.index.bytes());
  if (s.index_share.over_limit())
    return absl::ResourceExhaustedError(
        absl::StrCat("restored waiting ids are above memory_bytes_max: table=", s.settings.name));
  return absl::OkStatus();
}

absl::Status EmbeddingTable::RestoreStep(std::uint64_t step) {
  if (step > std::numeric_limits<std::uint32_t>::max())
    return absl::InvalidArgumentError(absl::StrCat(
        "a table's restored step does not fit 32 bits: table=", settings().name, " step=", step));
  if (stamps()) store_->step = std::max(store_->step, static_cast<std::uint32_t>(step));
  return absl::OkStatus();
}

// ---------------------------------------------------------------- figures

TableStats EmbeddingTable::stats() const {
  EG_CHECK(!applying());
  const RowStore& s = *store_;
  TableStats stats = counted_;
  stats.rows = s.rows;
  stats.waiting = s.waiting;
  stats.value_bytes = s.rows * s.dimension * sizeof(float);
  stats.state_bytes = s.rows * state_per_row() * sizeof(float);
  // Stamps are part of the index, which has 16 bytes per position with stamps and 12.8 without.
  const std::uint64_t stamp_bytes = s.stamped ? s.index.bytes() / 5 : 0;
  stats.index_bytes = s.index.bytes() - stamp_bytes;
  stats.counter_bytes = stamp_bytes + s.rows * (counts_per_row() ? sizeof(std::uint32_t) : 0);
  stats.memory_bytes = s.arena_share.bytes() + s.index_share.bytes();
  stats.index_places = s.index.places();
  return stats;
}

std::vector<HotId> EmbeddingTable::Hottest(std::size_t count) const {
  std::vector<HotId> all;
  all.reserve(hot_.size());
  for (std::size_t i = 0; i < hot_.size(); ++i)
    all.push_back(
        {hot_.id(i), hot_.count(i) * HotIds::kSampledEvery, hot_.error(i) * HotIds::kSampledEvery});
  std::sort(all.begin(), all.end(), [](const HotId& a, const HotId& b) {
    return a.pushes != b.pushes ? a.pushes > b.pushes : a.id < b.id;
  });
  all.resize(std::min(all.size(), count));
  return all;
}

EmbeddingTable::Digests EmbeddingTable::Digest() const {
  EG_CHECK(!applying());
  const RowStore& s = *store_;
  Digests d;
  s.index.ForEach([&](const RowIndex::Entry& e) {
    const std::int64_t id = s.IdOf(e.hash);
    if (!IsRow(e)) {
      d.counters += sharding::DigestOfCounters(id, e.stamp, CountOf(e), true);
      return;
    }
    const float* const at = s.arena.At(e.row);
    d.values += sharding::DigestOfRow(id, 0, {at, s.dimension});
    d.state += sharding::DigestOfRow(id, static_cast<std::uint32_t>(s.dimension),
                                     {at + s.dimension, state_per_row()});
    d.counters +=
        sharding::DigestOfCounters(id, e.stamp, counts_per_row() ? s.arena.Count(e.row) : 0, false);
  });
  return d;
}

}  // namespace evergrad::ps_server::storage

#include "ps_server/shard/slot_contents.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/checked_math.h"
#include "common/base/status.h"
#include "common/tensor/tensor.h"
#include "ps_server/shard/shard_rules.h"

namespace evergrad::ps_server {

namespace {

absl::Status RestoreSlice(const storage::TableSlice& slice, storage::EmbeddingTable* table) {
  const auto wide = [](const std::vector<std::uint32_t>& narrow) {
    return std::vector<std::uint64_t>(narrow.begin(), narrow.end());
  };
  if (!slice.ids.empty()) {
    const std::vector<std::uint64_t> stamps = wide(slice.stamps), counts = wide(slice.counts);
    EG_RETURN_IF_ERROR(table->Restore(
        storage::RestoredRows{slice.ids, stamps, counts, slice.values, slice.state}));
  }
  if (slice.waiting_ids.empty()) return absl::OkStatus();
  const std::vector<std::uint64_t> stamps = wide(slice.waiting_stamps),
                                   counts = wide(slice.waiting_counts);
  return table->Restore(storage::RestoredWaiting{slice.waiting_ids, stamps, counts});
}

}  // namespace

absl::StatusOr<std::unique_ptr<SlotContents>> SlotContents::FromSeed(
    const ShardSettings& settings, const std::shared_ptr<storage::MemoryBudget>& budget) {
  auto contents = std::make_unique<SlotContents>();
  contents->wire_ = settings.slot->wire;
  for (const storage::TableSettings& table : settings.slot->tables) {
    EG_ASSIGN_OR_RETURN(auto made, storage::EmbeddingTable::Create(table, budget));
    contents->tables_.push_back(std::move(made));
  }
  return contents;
}

absl::StatusOr<std::unique_ptr<SlotContents>> SlotContents::FromCut(const ShardSettings& settings,
                                                                    ShardCut cut) {
  const SlotSettings& want = *settings.slot;
  if (!cut.settings->slot || cut.settings->slot->slot != want.slot ||
      cut.settings->slot->slots != want.slots || cut.tables.size() != want.tables.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a cut does not fit its shard: variable=", settings.variable,
                     " shard=", settings.shard.ToString(), " want_tables=", want.tables.size(),
                     " got_tables=", cut.tables.size(), " got=", cut.settings->variable));
  }
  auto contents = std::make_unique<SlotContents>();
  contents->wire_ = want.wire;
  contents->tables_ = std::move(cut.tables);
  return contents;
}

std::string SlotContents::Misfit(const TableRows& rows, std::uint64_t* bytes,
                                 tensor::WireType* wire) const {
  if (!rows.present) return "a slot needs an id list";
  if (rows.tables.size() != rows.rows.size() || rows.tables.empty())
    return absl::StrCat("the numbers of tables and of row counts differ: tables=",
                        rows.tables.size(), " rows=", rows.rows.size());
  std::uint64_t ids = 0;
  *bytes = 0;
  for (std::size_t k = 0; k < rows.tables.size(); ++k) {
    const std::uint32_t table = rows.tables[k];
    if (table >= tables_.size())
      return absl::StrCat("no such table: table=", table, " tables=", tables_.size());
    if (k > 0 && table <= rows.tables[k - 1])
      return absl::StrCat("table numbers are not ascending: table=", table,
                          " after=", rows.tables[k - 1]);
    if (rows.rows[k] == 0) return absl::StrCat("a table has no rows: table=", table);
    ids += rows.rows[k];
    *bytes += std::uint64_t{rows.rows[k]} * tables_[table]->dimension() *
              tensor::WireBytes(wire_of(table));  // below 2^46 for each of at most 2^12 tables
    *wire = k == 0 || *wire == wire_of(table) ? wire_of(table) : tensor::WireType::kSeveral;
  }
  if (ids != rows.ids.size())
    return absl::StrCat("the numbers of rows and of ids differ: rows=", ids,
                        " ids=", rows.ids.size());
  return "";
}

std::optional<Contents::Refusal> SlotContents::Prepare(const Push& push, absl::string_view where) {
  std::uint64_t bytes = 0;
  tensor::WireType wire = tensor::WireType::kSeveral;
  std::string defect = Misfit(push.rows_of, &bytes, &wire);
  if (defect.empty() && push.kind != UpdateKind::kGradient)
    defect = "update kind mismatch: want=GRADIENT got=MOVING_AVERAGE";
  if (defect.empty() && push.rows != push.rows_of.ids.size())
    defect =
        absl::StrCat("gradient rows mismatch: want=", push.rows_of.ids.size(), " got=", push.rows);
  if (defect.empty() && push.wire != wire)
    defect = absl::StrCat("gradient dtype mismatch: want=", tensor::WireTypeName(wire),
                          " got=", tensor::WireTypeName(push.wire));
  if (defect.empty() && push.payload.size() != bytes)
    defect = absl::StrCat("gradient bytes mismatch: want=", bytes, " got=", push.payload.size());
  if (defect.empty() && wire == tensor::WireType::kFloat32 &&
      reinterpret_cast<std::uintptr_t>(push.payload.data()) % alignof(float) != 0)
    defect = "gradient is not aligned";
  if (!defect.empty()) return Refusal{PushCode::kInvalid, absl::StrCat(defect, ": ", where)};

  // Prepares all tables or none. No visible state changes before Apply.
  parts_.clear();
  next_part_ = 0;
  evicts_ = false;
  std::size_t first_id = 0, first_byte = 0;
  for (std::size_t k = 0; k < push.rows_of.tables.size(); ++k) {
    storage::EmbeddingTable* const table = tables_[push.rows_of.tables[k]].get();
    const std::size_t n = push.rows_of.rows[k];
    const auto outcome = table->Prepare(push.rows_of.ids.subspan(first_id, n), push.global_step);
    if (!outcome.ok()) {
      for (const TablePart& part : parts_)
        SlotRules::TakeBack(part.table, part.wire, push.payload.data() + part.first_byte);
      parts_.clear();
      return Refusal{
          absl::IsInvalidArgument(outcome.status()) ? PushCode::kInvalid : PushCode::kOverBudget,
          absl::StrCat(outcome.status().message(), ": ", where, " table=", table->settings().name)};
    }
    evicts_ = evicts_ || outcome->evicted() > 0;
    const tensor::WireType of = wire_of(push.rows_of.tables[k]);
    parts_.push_back({table, of, first_byte});
    first_id += n;
    first_byte += n * table->dimension() * tensor::WireBytes(of);
  }
  return std::nullopt;
}

std::uint64_t SlotContents::Begin(const Push& push, std::uint64_t) {
  gradient_ = push.payload.data();
  applying_ = true;
  return evicts_ ? 1 : 0;
}

std::uint64_t SlotContents::Continue(std::uint64_t bytes_max) {
  EG_CHECK(applying());
  std::uint64_t bytes = 0;
  while (next_part_ < parts_.size() && (bytes == 0 || bytes < bytes_max)) {
    const TablePart& part = parts_[next_part_];
    bytes += part.table->Apply(part.wire, gradient_ + part.first_byte, bytes_max - bytes);
    if (!part.table->applying()) ++next_part_;
  }
  if (next_part_ == parts_.size()) {
    applying_ = false;
    gradient_ = nullptr;
  }
  return bytes;
}

PullPlan SlotContents::Read(const Pull& pull, absl::string_view where) const {
  PullPlan plan;
  if (const std::string defect = Misfit(pull.rows_of, &plan.rows_bytes, &plan.result.wire);
      !defect.empty()) {
    plan.rows_bytes = 0;
    plan.result.invalid = absl::StrCat(defect, ": ", where);
    return plan;
  }
  std::size_t first_id = 0;
  for (std::size_t k = 0; k < pull.rows_of.tables.size(); ++k) {
    const std::uint32_t table = pull.rows_of.tables[k];
    const std::size_t n = pull.rows_of.rows[k];
    plan.rows.push_back(
        {tables_[table].get(), pull.rows_of.ids.subspan(first_id, n), wire_of(table), nullptr});
    first_id += n;
  }
  return plan;
}

void SlotContents::Cut(std::uint64_t preimage_bytes_max, ShardCut* cut) {
  EG_CHECK(!applying());
  cut->serial = ++cut_serial_;
  cut_table_ = 0;
  cut_open_ = true;
  for (const auto& table : tables_) {
    table->EndCut();
    const storage::EmbeddingTable::CutInfo info =
        SlotRules::BeginCut(table.get(), preimage_bytes_max / tables_.size());
    cut->table_rows.push_back(info.rows);
    cut->table_filtered.push_back(info.waiting);
    cut->table_steps.push_back(info.step);
  }
  // The size is that of the file of the cut: values and optimizer state, and the id, stamp and
  // count of each row or waiting id.
  cut->table_bytes = value_bytes() + state_bytes();
  for (std::size_t t = 0; t < tables_.size(); ++t)
    cut->table_bytes += (cut->table_rows[t] + cut->table_filtered[t]) * 3 * sizeof(std::uint64_t);
}

absl::StatusOr<SlotSlice> SlotContents::NextSlice(std::uint64_t serial, std::uint64_t bytes_max) {
  if (!cut_open_ || serial != cut_serial_)
    return absl::AbortedError("this cut of the slot has ended");
  SlotSlice slice;
  for (; cut_table_ < tables_.size(); ++cut_table_) {
    storage::EmbeddingTable& table = *tables_[cut_table_];
    slice.table = static_cast<std::uint32_t>(cut_table_);
    const bool more = SlotRules::NextSlice(&table, bytes_max, &slice.rows);
    if (table.cut_state() == storage::EmbeddingTable::CutState::kLost) {
      EndCut(serial);
      return absl::AbortedError(absl::StrCat("pushes changed more rows than a cut may save: table=",
                                             table.settings().name));
    }
    if (!slice.rows.ids.empty() || !slice.rows.waiting_ids.empty()) {
      if (!more) ++cut_table_;
      return slice;
    }
    if (more) return slice;
  }
  slice.rows.clear();
  slice.end = true;
  EndCut(serial);
  return slice;
}

void SlotContents::EndCut(std::uint64_t serial) {
  if (!cut_open_ || serial != cut_serial_) return;
  cut_open_ = false;
  for (const auto& table : tables_) table->EndCut();
}

std::unique_ptr<Contents> SlotContents::Copy() const {
  EG_CHECK(!applying());
  auto copy = std::make_unique<SlotContents>();
  copy->wire_ = wire_;
  for (const auto& table : tables_) {
    auto made = storage::EmbeddingTable::Create(table->settings(), nullptr);
    EG_CHECK(made.ok());
    table->EndCut();
    const storage::EmbeddingTable::CutInfo info = table->BeginCut(0);
    storage::TableSlice slice;
    for (bool more = true; more;) {
      more = table->NextSlice(~0ull, &slice);
      EG_CHECK(RestoreSlice(slice, made->get()).ok());
    }
    table->EndCut();
    EG_CHECK((*made)->RestoreStep(info.step).ok());
    copy->tables_.push_back(*std::move(made));
  }
  return copy;
}

std::uint64_t SlotContents::value_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& table : tables_) bytes += table->rows() * table->dimension() * sizeof(float);
  return bytes;
}

std::uint64_t SlotContents::state_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& table : tables_) bytes += table->rows() * table->state_per_row() * sizeof(float);
  return bytes;
}

std::uint64_t SlotContents::Digest() const {
  std::uint64_t sum = 0;
  for (const auto& table : tables_) sum += table->Digest().values;
  return sum;
}

std::uint64_t SlotContents::StateDigest() const {
  std::uint64_t sum = 0;
  for (const auto& table : tables_) {
    const storage::EmbeddingTable::Digests digests = table->Digest();
    sum += digests.state + digests.counters;
  }
  return sum;
}

std::vector<const storage::EmbeddingTable*> SlotContents::Tables() const {
  std::vector<const storage::EmbeddingTable*> tables;
  for (const auto& table : tables_) tables.push_back(table.get());
  return tables;
}

}  // namespace evergrad::ps_server

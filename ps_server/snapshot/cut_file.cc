#include "ps_server/snapshot/cut_file.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/client/describe.h"
#include "common/runtime/executor.h"
#include "common/snapshot/messages.h"
#include "ps_server/snapshot/row_block.h"

namespace evergrad::ps_server {
namespace {

static_assert(std::endian::native == std::endian::little,
              "values are written in the byte order of memory");

void FillInitializer(const InitializerSettings& from, v1::Initializer* to) {
  to->set_type(from.type);
  to->set_value(from.value);
  to->set_mean(from.mean);
  to->set_stddev(from.stddev);
  to->set_fan_in(from.fan_in);
  to->set_fan_out(from.fan_out);
  to->set_seed(from.seed);
}

void FillSlot(const SlotSettings& from, v1::SlotSpec* to) {
  to->set_slot(from.slot);
  to->set_slots(from.slots);
  for (const storage::TableSettings& table : from.tables) {
    v1::TableSpec& spec = *to->add_tables();
    spec.set_name(table.name);
    spec.set_dtype(v1::DTYPE_FLOAT32);
    spec.set_dimension(table.dimension);
    FillInitializer(table.initializer, spec.mutable_initializer());
    client::FillOptimizer(table.optimizer, spec.mutable_optimizer());
    spec.set_index(static_cast<std::uint32_t>(to->tables_size() - 1));
    spec.set_admit_after(table.admit_after);
    spec.set_default_row(table.default_row);
    spec.set_ttl_steps(table.ttl_steps);
    spec.set_bytes_max(table.bytes_max * from.slots);
    spec.set_evict_lru(table.evict_lru);
  }
}

v1::ShardSpec SpecOf(const ShardSettings& settings) {
  v1::ShardSpec spec;
  spec.set_shard(settings.shard.value());
  spec.set_row_begin(settings.row_begin);
  spec.set_row_end(settings.row_end);
  v1::VariableSpec& variable = *spec.mutable_variable();
  variable.set_name(settings.variable);
  variable.set_index(settings.variable_index);
  for (const std::uint64_t dim : settings.variable_shape.dims()) variable.add_shape(dim);
  variable.set_dtype(v1::DTYPE_FLOAT32);
  FillInitializer(settings.initializer, variable.mutable_initializer());
  client::FillOptimizer(settings.optimizer, variable.mutable_optimizer());
  return spec;
}

v1::ShardFileHeader HeaderOf(const ShardCut& cut, const std::string& plan_fingerprint) {
  v1::ShardFileHeader header;
  header.set_job_uid(cut.settings->job.value());
  header.set_shard(cut.settings->shard.value());
  *header.mutable_epoch() = snapshot::ToProto(cut.epoch);
  *header.mutable_start() = snapshot::ToProto(cut.start);
  header.set_lsn(cut.lsn);
  header.set_vlsn(cut.vlsn);
  header.set_plan_fingerprint(plan_fingerprint);
  if (cut.settings->slot) {
    header.set_kind(v1::SHARD_KIND_SLOT);
    FillSlot(*cut.settings->slot, header.mutable_slot());
    header.mutable_table_rows()->Add(cut.table_rows.begin(), cut.table_rows.end());
    header.mutable_table_filtered()->Add(cut.table_filtered.begin(), cut.table_filtered.end());
    header.mutable_table_steps()->Add(cut.table_steps.begin(), cut.table_steps.end());
    return header;
  }
  header.set_kind(v1::SHARD_KIND_DENSE);
  *header.mutable_dense() = SpecOf(*cut.settings);
  header.set_slots(static_cast<std::uint32_t>(cut.states.size()));
  return header;
}

v1::ShardCounters CountersOf(const ShardCut& cut) {
  v1::ShardCounters counters;
  counters.set_updates_applied(cut.updates_applied);
  for (const auto& [reason, count] : cut.skips) {
    v1::SkipCount& skip = *counters.add_skips();
    skip.set_reason(reason);
    skip.set_count(count);
  }
  return counters;
}

v1::ShardLedger LedgerOf(const Ledger& ledger) {
  v1::ShardLedger proto;
  *proto.mutable_done() = snapshot::ToProto(ledger.done());
  *proto.mutable_refused() = snapshot::ToProto(ledger.refused());
  for (const auto& [c, open] : ledger.open()) {
    v1::OpenClosure& closure = *proto.add_open();
    closure.set_closure(c.value());
    *closure.mutable_attempt() = snapshot::ToProto(open.attempt);
    closure.mutable_bits()->Add(open.bits.begin(), open.bits.end());
  }
  return proto;
}

absl::Status At(fault::Failpoints* failpoints, absl::string_view name) {
  return failpoints == nullptr ? absl::OkStatus() : failpoints->ErrorAt(name);
}

// Called with each MiB of a shard file that has been read. A delay of the failpoint ends when the
// restore is cancelled.
absl::Status BeforePiece(const CutSource& source) {
  const auto cancelled = [&] { return source.cancelled && source.cancelled(); };
  if (source.failpoints != nullptr) {
    constexpr char kName[] = "snapshot.restore";
    const fault::Hit hit = source.failpoints->At(kName);
    if (hit.action == fault::Action::kError)
      return absl::InternalError(absl::StrCat("failpoint: name=", kName));
    if (hit.action == fault::Action::kUserError)
      return UserError(absl::InvalidArgumentError(absl::StrCat("failpoint: name=", kName)));
    constexpr std::int64_t kPauseMs = 10;
    runtime::WaitableEvent never;  // never set; the I/O thread waits for it with a timeout
    for (std::int64_t left_ms = hit.delay_ms; left_ms > 0 && !cancelled(); left_ms -= kPauseMs)
      never.WaitFor(std::chrono::milliseconds(std::min(left_ms, kPauseMs)));
  }
  if (cancelled())
    return absl::CancelledError(
        absl::StrCat("loading of the shard was cancelled: path=", source.uri));
  return absl::OkStatus();
}

absl::Status AppendArray(const storage::DenseArray& array, const CutTarget& target,
                         snapshot::ShardFileWriter* writer) {
  for (std::size_t c = 0; c < array.chunks(); ++c) {
    if (c % 4 == 0) {
      EG_RETURN_IF_ERROR(At(target.failpoints, "snapshot.write"));
      if (target.cancelled && target.cancelled())
        return absl::CancelledError("the snapshot was cancelled");
    }
    EG_RETURN_IF_ERROR(writer->Append(std::as_bytes(array.chunk(c))));
  }
  return absl::OkStatus();
}

absl::Status AppendDense(const ShardCut& cut, const CutTarget& target,
                         snapshot::ShardFileWriter* writer) {
  EG_RETURN_IF_ERROR(writer->BeginSection(snapshot::Section::kValues, 0));
  EG_RETURN_IF_ERROR(AppendArray(cut.values, target, writer));
  for (std::size_t k = 0; k < cut.states.size(); ++k) {
    EG_RETURN_IF_ERROR(
        writer->BeginSection(snapshot::Section::kState, static_cast<std::uint32_t>(k)));
    EG_RETURN_IF_ERROR(AppendArray(cut.states[k], target, writer));
  }
  return absl::OkStatus();
}

// Writes the slices in the order of their arrival. Meanwhile each push saves the old contents of
// the rows that it changes, for later slices.
absl::Status AppendTables(const ShardCut& cut, const CutTarget& target,
                          snapshot::ShardFileWriter* writer) {
  RowWriter rows_to(writer);
  std::vector<std::uint64_t> rows(cut.table_rows.size()), waiting(cut.table_rows.size());
  for (;;) {
    EG_RETURN_IF_ERROR(At(target.failpoints, "snapshot.write"));
    if (target.cancelled && target.cancelled())
      return absl::CancelledError("the snapshot was cancelled");
    EG_ASSIGN_OR_RETURN(const SlotSlice slice, cut.next_slice());
    if (slice.end) break;
    const storage::TableSettings& table = cut.settings->slot->tables[slice.table];
    EG_RETURN_IF_ERROR(rows_to.Append(slice.table, table.dimension, slice.rows));
    rows[slice.table] += slice.rows.ids.size();
    waiting[slice.table] += slice.rows.waiting_ids.size();
  }
  EG_CHECK_MSG(rows == cut.table_rows && waiting == cut.table_filtered,
               "the slices of a cut must have as many rows as the cut counted at its beginning");
  return absl::OkStatus();
}

// Removes an existing file with the name of this cut, which a failed commit of this job has left,
// so that the cut can be written again. Returns AlreadyExists if the file belongs to another job.
absl::Status RemoveLeftover(const std::string& uri, const ShardCut& cut, fs::FileSystem& files) {
  const auto there = snapshot::ShardFileReader::Open(files, uri);
  if (there.ok() && (*there)->header().job_uid() != cut.settings->job.value()) {
    return absl::AlreadyExistsError(absl::StrCat(
        "two jobs write to the same folder: path=", uri, " job=", JobUidString(cut.settings->job),
        " other=", JobUidString(JobUid((*there)->header().job_uid())),
        " (give each job its own folder)"));
  }
  return files.Remove(uri);
}

}  // namespace

absl::StatusOr<snapshot::FileDigest> WriteCutTo(const ShardCut& cut, const CutTarget& target,
                                                fs::WritableFile* out) {
  EG_ASSIGN_OR_RETURN(const auto writer, snapshot::ShardFileWriter::Begin(
                                             out, HeaderOf(cut, target.plan_fingerprint)));
  if (cut.settings->slot)
    EG_RETURN_IF_ERROR(AppendTables(cut, target, writer.get()));
  else
    EG_RETURN_IF_ERROR(AppendDense(cut, target, writer.get()));
  EG_RETURN_IF_ERROR(writer->WriteCounters(CountersOf(cut)));
  EG_RETURN_IF_ERROR(writer->WriteLedger(LedgerOf(cut.ledger)));
  return writer->Finish();
}

absl::StatusOr<DurableCut> WriteCut(const ShardCut& cut, const CutTarget& target) {
  fs::FileSystem& files = *target.files;
  DurableCut durable{
      cut.settings->job, cut.settings->shard,  cut.epoch, cut.start, cut.lsn, cut.vlsn,
      cut.ledger.done(), cut.ledger.refused(), "",        {}};
  durable.file = snapshot::ShardFileName(durable.shard, durable.epoch, durable.lsn);
  const std::string uri = fs::JoinUri(target.folder, durable.file);
  EG_RETURN_IF_ERROR(files.MakeFolders(target.folder));
  auto file = files.Create(uri);
  if (absl::IsAlreadyExists(file.status())) {
    EG_RETURN_IF_ERROR(RemoveLeftover(uri, cut, files));
    file = files.Create(uri);
  }
  if (!file.ok()) return file.status();
  EG_ASSIGN_OR_RETURN(durable.digest, WriteCutTo(cut, target, file->get()));
  EG_RETURN_IF_ERROR(At(target.failpoints, "snapshot.before_commit"));
  EG_RETURN_IF_ERROR((*file)->Commit());
  EG_RETURN_IF_ERROR(At(target.failpoints, "snapshot.after_commit"));
  return durable;
}

namespace {

// Returns a function that makes the error for an undamaged file of another shard, plan or job.
auto DiffersIn(const CutSource& source) {
  return [&source](absl::string_view what, const std::string& want, const std::string& got) {
    return absl::FailedPreconditionError(absl::StrCat("the snapshot file has another ", what,
                                                      ": path=", source.uri, " want=", want,
                                                      " got=", got));
  };
}

// Creates and fills all tables of a slot, charged to the budget like any other table.
absl::Status ReadTables(const ShardSettings& settings, const CutSource& source,
                        snapshot::ShardFileReader* reader, ShardCut* cut) {
  const v1::ShardFileHeader& header = reader->header();
  const auto differs = DiffersIn(source);
  const SlotSettings& want = *settings.slot;
  const v1::SlotSpec& got = header.slot();
  if (got.slot() != want.slot || got.slots() != want.slots)
    return differs("slot", absl::StrCat(want.slot, " of ", want.slots),
                   absl::StrCat(got.slot(), " of ", got.slots()));
  if (static_cast<std::size_t>(got.tables_size()) != want.tables.size())
    return differs("number of tables", absl::StrCat(want.tables.size()),
                   absl::StrCat(got.tables_size()));
  for (int t = 0; t < got.tables_size(); ++t) {
    const auto text = [](const std::string& name, std::uint32_t dimension,
                         const std::string& optimizer) {
      return absl::StrCat(name, " x ", dimension, " ", optimizer);
    };
    const storage::TableSettings& table = want.tables[static_cast<std::size_t>(t)];
    const v1::TableSpec& spec = got.tables(t);
    const std::string expected = text(table.name, table.dimension, table.optimizer.type);
    if (const std::string found = text(spec.name(), spec.dimension(), spec.optimizer().type());
        found != expected)
      return differs("table", expected, found);
    EG_ASSIGN_OR_RETURN(auto made, storage::EmbeddingTable::Create(table, source.budget));
    cut->tables.push_back(std::move(made));
    cut->table_rows.push_back(header.table_rows(t));
    cut->table_filtered.push_back(header.table_filtered(t));
    cut->table_steps.push_back(header.table_steps(t));
  }
  const auto damaged = [&](absl::string_view what) {
    return absl::DataLossError(absl::StrCat(what, ": path=", source.uri));
  };
  RowBlock block;
  const auto take = [&](const snapshot::ShardFileReader::Piece& piece) -> absl::Status {
    EG_RETURN_IF_ERROR(BeforePiece(source));
    storage::EmbeddingTable& table = *cut->tables[piece.index];  // the reader has checked the index
    const bool rows = piece.section == snapshot::Section::kRows;
    if (!block.Parse(piece.data, rows ? table.dimension() : 0, rows ? table.state_per_row() : 0))
      return damaged(absl::StrCat("a block of rows is malformed: table=", table.settings().name,
                                  " bytes=", piece.data.size()));
    absl::Status restored =
        rows ? table.Restore(storage::RestoredRows{block.ids, block.stamps, block.counts,
                                                   block.values, block.state})
             : table.Restore(storage::RestoredWaiting{block.ids, block.stamps, block.counts});
    if (absl::IsInvalidArgument(restored)) return damaged(restored.message());
    return restored;
  };
  EG_RETURN_IF_ERROR(reader->ReadAll(take));
  for (std::size_t t = 0; t < cut->tables.size(); ++t) {
    storage::EmbeddingTable& table = *cut->tables[t];
    if (table.rows() != cut->table_rows[t] || table.waiting() != cut->table_filtered[t]) {
      return damaged(absl::StrCat("rows of a table are missing: table=", table.settings().name,
                                  " want=", cut->table_rows[t], "+", cut->table_filtered[t],
                                  " got=", table.rows(), "+", table.waiting()));
    }
    if (const absl::Status step = table.RestoreStep(cut->table_steps[t]); !step.ok())
      return damaged(step.message());
  }
  return absl::OkStatus();
}

absl::Status ReadDense(const ShardSettings& settings, const CutSource& source,
                       snapshot::ShardFileReader* reader, ShardCut* cut) {
  const v1::ShardFileHeader& header = reader->header();
  const auto differs = DiffersIn(source);
  const v1::ShardSpec& spec = header.dense();
  const tensor::Shape shape(
      std::vector<std::uint64_t>(spec.variable().shape().begin(), spec.variable().shape().end()));
  const auto rows = [](const std::string& name, const tensor::Shape& s, std::uint64_t begin,
                       std::uint64_t end) {
    return absl::StrCat(name, s.ToString(), " rows ", begin, "..", end);
  };
  const std::string want =
      rows(settings.variable, settings.variable_shape, settings.row_begin, settings.row_end);
  // The rows are checked before any allocation, so that a file of another size is refused first.
  if (const std::string got = rows(spec.variable().name(), shape, spec.row_begin(), spec.row_end());
      got != want)
    return differs("cut", want, got);
  if (header.slots() > static_cast<std::uint32_t>(optimizer::kStatesMax))
    return differs("optimizer", absl::StrCat("at most ", optimizer::kStatesMax, " states"),
                   absl::StrCat(header.slots()));

  const std::uint64_t elements =
      (settings.row_end - settings.row_begin) * settings.variable_shape.row_elements();
  EG_ASSIGN_OR_RETURN(cut->values, storage::DenseArray::Create(elements, source.pool));
  cut->states.resize(header.slots());
  for (storage::DenseArray& state : cut->states) {
    EG_ASSIGN_OR_RETURN(state, storage::DenseArray::Create(elements, source.pool));
  }
  return reader->ReadAll([&](const snapshot::ShardFileReader::Piece& piece) -> absl::Status {
    EG_RETURN_IF_ERROR(BeforePiece(source));
    // The reader has checked section, index and length against the header.
    storage::DenseArray& array =
        piece.section == snapshot::Section::kValues ? cut->values : cut->states[piece.index];
    std::uint64_t at = piece.offset;
    for (std::span<const std::byte> left = piece.data; !left.empty();) {
      const std::span<std::byte> chunk =
          std::as_writable_bytes(array.fill_chunk(at / storage::kChunkBytes))
              .subspan(at % storage::kChunkBytes);
      const std::size_t n = std::min(left.size(), chunk.size());
      std::memcpy(chunk.data(), left.data(), n);
      left = left.subspan(n);
      at += n;
    }
    return absl::OkStatus();
  });
}

}  // namespace

absl::StatusOr<ShardCut> ReadCut(const ShardSettings& settings, const CutSource& source) {
  EG_ASSIGN_OR_RETURN(const auto reader,
                      snapshot::ShardFileReader::Open(*source.files, source.uri, source.expected));
  const v1::ShardFileHeader& header = reader->header();
  const auto differs = DiffersIn(source);
  if ((header.kind() == v1::SHARD_KIND_SLOT) != settings.slot.has_value())
    return differs("kind of shard", settings.slot ? "a slot of tables" : "dense",
                   settings.slot ? "dense" : "a slot of tables");
  if (header.job_uid() != source.file_job.value())
    return differs("job", JobUidString(source.file_job), JobUidString(JobUid(header.job_uid())));
  if (header.plan_fingerprint() != source.plan_fingerprint)
    return differs("plan", source.plan_fingerprint, header.plan_fingerprint());
  if (header.shard() != settings.shard.value())
    return differs("shard", settings.shard.ToString(), absl::StrCat(header.shard()));

  ShardCut cut;
  auto was = std::make_shared<ShardSettings>(settings);
  was->job = source.file_job;
  if (!settings.slot) was->optimizer.type = header.dense().variable().optimizer().type();
  cut.settings = std::move(was);
  cut.epoch = snapshot::FromProto<ShardEpoch>(header.epoch());
  cut.start = snapshot::FromProto<MapVersion>(header.start());
  cut.lsn = header.lsn();
  cut.vlsn = header.vlsn();
  EG_RETURN_IF_ERROR(settings.slot ? ReadTables(settings, source, reader.get(), &cut)
                                   : ReadDense(settings, source, reader.get(), &cut));
  cut.updates_applied = reader->counters().updates_applied();
  if (reader->counters().skips_size() > static_cast<int>(kSkipReasonsMax) + 1)
    return absl::DataLossError(absl::StrCat("too many reasons of skips: path=", source.uri));
  for (const v1::SkipCount& skip : reader->counters().skips())
    cut.skips[skip.reason()] = skip.count();
  std::map<ClosureId, Ledger::Open> open;
  for (const v1::OpenClosure& closure : reader->ledger().open()) {
    open[ClosureId(closure.closure())] = {snapshot::FromProto<Attempt>(closure.attempt()),
                                          {closure.bits().begin(), closure.bits().end()}};
  }
  cut.ledger = Ledger::Restored(reader->done(), reader->refused(), std::move(open));
  return cut;
}

namespace {

absl::StatusOr<std::unique_ptr<Shard>> ReadShard(const RestoreOptions& options) {
  EG_ASSIGN_OR_RETURN(ShardCut cut, ReadCut(options.settings, options.source));
  if (options.replace_ledger) {
    if (!cut.ledger.open().empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the snapshot has an open closure, so a job with another plan cannot start from it: "
          "variable=",
          options.settings.variable, " shard=", options.settings.shard.ToString(),
          " closure=", cut.ledger.open().begin()->first.ToString(), " path=", options.source.uri));
    }
    cut.ledger = Ledger::Restored(*options.replace_ledger, {}, {});
  }
  if (options.forget_attempts) cut.ledger = cut.ledger.WithoutAttempts();
  return Shard::Restore(options.settings, std::move(cut), options.epoch, options.start,
                        options.refused);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Shard>> RestoreShard(const RestoreOptions& options) {
  auto shard = ReadShard(options);
  if (shard.ok() || absl::StrContains(shard.status().message(), options.source.uri)) return shard;
  absl::Status named(shard.status().code(),
                     absl::StrCat(shard.status().message(), ": path=", options.source.uri));
  shard.status().ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { named.SetPayload(url, payload); });
  return named;
}

}  // namespace evergrad::ps_server

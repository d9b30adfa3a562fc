#include "ps_server/snapshot/cut_file.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/snapshot/messages.h"

namespace evergrad::ps_server {
namespace {

static_assert(std::endian::native == std::endian::little, "values are written as they lie in memory");

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
  v1::Initializer& initializer = *variable.mutable_initializer();
  initializer.set_type(settings.initializer.type);
  initializer.set_value(settings.initializer.value);
  initializer.set_mean(settings.initializer.mean);
  initializer.set_stddev(settings.initializer.stddev);
  initializer.set_fan_in(settings.initializer.fan_in);
  initializer.set_fan_out(settings.initializer.fan_out);
  initializer.set_seed(settings.initializer.seed);
  v1::Optimizer& optimizer = *variable.mutable_optimizer();
  optimizer.set_type(settings.optimizer.type);
  optimizer.set_learning_rate(settings.optimizer.learning_rate);
  optimizer.set_momentum(settings.optimizer.momentum);
  optimizer.set_nesterov(settings.optimizer.nesterov);
  optimizer.set_beta_1(settings.optimizer.beta_1);
  optimizer.set_beta_2(settings.optimizer.beta_2);
  optimizer.set_epsilon(settings.optimizer.epsilon);
  optimizer.set_initial_accumulator_value(settings.optimizer.initial_accumulator_value);
  optimizer.set_weight_decay(settings.optimizer.weight_decay);
  optimizer.set_rho(settings.optimizer.rho);
  optimizer.set_learning_rate_power(settings.optimizer.learning_rate_power);
  optimizer.set_l1_regularization_strength(settings.optimizer.l1_regularization_strength);
  optimizer.set_l2_regularization_strength(settings.optimizer.l2_regularization_strength);
  optimizer.set_beta(settings.optimizer.beta);
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
  header.set_kind(v1::SHARD_KIND_DENSE);
  header.set_plan_fingerprint(plan_fingerprint);
  *header.mutable_dense() = SpecOf(*cut.settings);
  header.set_slots(static_cast<std::uint32_t>(cut.slots.size()));
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

absl::Status AppendArray(const storage::DenseArray& array, const CutTarget& target, snapshot::ShardFileWriter* writer) {
  for (std::size_t c = 0; c < array.chunks(); ++c) {
    if (c % 4 == 0) {
      EG_RETURN_IF_ERROR(At(target.failpoints, "snapshot.write"));
      if (target.cancelled && target.cancelled()) return absl::CancelledError("the cut is not wanted any more");
    }
    EG_RETURN_IF_ERROR(writer->Append(std::as_bytes(array.chunk(c))));
  }
  return absl::OkStatus();
}

// A file that has the name of this cut: left by a commit of ours that failed after all, so it may be written anew; or somebody else's.
absl::Status RemoveLeftover(const std::string& uri, const ShardCut& cut, fs::FileSystem& files) {
  const auto there = snapshot::ShardFileReader::Open(files, uri);
  if (there.ok() && (*there)->header().job_uid() != cut.settings->job.value()) {
    return absl::AlreadyExistsError(absl::StrCat("two jobs write into one folder: path=", uri, " job=", JobUidString(cut.settings->job),
                                                 " other=", JobUidString(JobUid((*there)->header().job_uid())), " (give each a folder of its own)"));
  }
  return files.Remove(uri);
}

}  // namespace

absl::StatusOr<snapshot::FileDigest> WriteCutTo(const ShardCut& cut, const CutTarget& target, fs::WritableFile* out) {
  EG_ASSIGN_OR_RETURN(const auto writer, snapshot::ShardFileWriter::Begin(out, HeaderOf(cut, target.plan_fingerprint)));
  EG_RETURN_IF_ERROR(writer->BeginSection(snapshot::Section::kValues, 0));
  EG_RETURN_IF_ERROR(AppendArray(cut.values, target, writer.get()));
  for (std::size_t k = 0; k < cut.slots.size(); ++k) {
    EG_RETURN_IF_ERROR(writer->BeginSection(snapshot::Section::kSlot, static_cast<std::uint32_t>(k)));
    EG_RETURN_IF_ERROR(AppendArray(cut.slots[k], target, writer.get()));
  }
  EG_RETURN_IF_ERROR(writer->WriteCounters(CountersOf(cut)));
  EG_RETURN_IF_ERROR(writer->WriteLedger(LedgerOf(cut.ledger)));
  return writer->Finish();
}

absl::StatusOr<DurableCut> WriteCut(const ShardCut& cut, const CutTarget& target) {
  fs::FileSystem& files = *target.files;
  DurableCut durable{cut.settings->job, cut.settings->shard,  cut.epoch, cut.start, cut.lsn, cut.vlsn,
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

absl::StatusOr<ShardCut> ReadCut(const ShardSettings& settings, const CutSource& source) {
  EG_ASSIGN_OR_RETURN(const auto reader, snapshot::ShardFileReader::Open(*source.files, source.uri, source.expected));
  const v1::ShardFileHeader& header = reader->header();
  const auto differs = [&](absl::string_view what, const std::string& want, const std::string& got) {
    return absl::FailedPreconditionError(absl::StrCat("snapshot file is of another ", what, ": path=", source.uri, " want=", want, " got=", got));
  };
  if (header.kind() != v1::SHARD_KIND_DENSE) return absl::UnimplementedError(absl::StrCat("snapshots of tables are not built: path=", source.uri));
  if (header.job_uid() != source.file_job.value()) return differs("job", JobUidString(source.file_job), JobUidString(JobUid(header.job_uid())));
  if (header.plan_fingerprint() != source.plan_fingerprint) return differs("plan", source.plan_fingerprint, header.plan_fingerprint());
  const v1::ShardSpec& spec = header.dense();
  if (spec.shard() != settings.shard.value()) return differs("shard", settings.shard.ToString(), absl::StrCat(spec.shard()));
  const tensor::Shape shape(std::vector<std::uint64_t>(spec.variable().shape().begin(), spec.variable().shape().end()));
  const auto rows = [](const std::string& name, const tensor::Shape& s, std::uint64_t begin, std::uint64_t end) {
    return absl::StrCat(name, s.ToString(), " rows ", begin, "..", end);
  };
  const std::string want = rows(settings.variable, settings.variable_shape, settings.row_begin, settings.row_end);
  // Before anything is allocated: the size is that of the shard that was asked for.
  if (const std::string got = rows(spec.variable().name(), shape, spec.row_begin(), spec.row_end()); got != want) return differs("cut", want, got);
  if (header.slots() > static_cast<std::uint32_t>(optimizer::kSlotsMax))
    return differs("optimizer", absl::StrCat("at most ", optimizer::kSlotsMax, " slots"), absl::StrCat(header.slots()));

  ShardCut cut;
  auto was = std::make_shared<ShardSettings>(settings);
  was->job = source.file_job;
  was->optimizer.type = spec.variable().optimizer().type();
  cut.settings = std::move(was);
  cut.epoch = snapshot::FromProto<ShardEpoch>(header.epoch());
  cut.start = snapshot::FromProto<MapVersion>(header.start());
  cut.lsn = header.lsn();
  cut.vlsn = header.vlsn();
  const std::uint64_t elements = (settings.row_end - settings.row_begin) * settings.variable_shape.row_elements();
  EG_ASSIGN_OR_RETURN(cut.values, storage::DenseArray::Create(elements, source.pool));
  cut.slots.resize(header.slots());
  for (storage::DenseArray& slot : cut.slots) {
    EG_ASSIGN_OR_RETURN(slot, storage::DenseArray::Create(elements, source.pool));
  }
  const auto take = [&](const snapshot::ShardFileReader::Piece& piece) -> absl::Status {
    EG_RETURN_IF_ERROR(At(source.failpoints, "snapshot.restore"));
    if (source.cancelled && source.cancelled()) return absl::CancelledError(absl::StrCat("the shard is not wanted any more: path=", source.uri));
    // The reader has checked section, index and length against the header.
    storage::DenseArray& array = piece.section == snapshot::Section::kValues ? cut.values : cut.slots[piece.index];
    std::uint64_t at = piece.offset;
    for (std::span<const std::byte> left = piece.data; !left.empty();) {
      constexpr std::uint64_t kChunkBytes = storage::kChunkFloats * sizeof(float);
      const std::span<std::byte> chunk = std::as_writable_bytes(array.fill_chunk(at / kChunkBytes)).subspan(at % kChunkBytes);
      const std::size_t n = std::min(left.size(), chunk.size());
      std::memcpy(chunk.data(), left.data(), n);
      left = left.subspan(n);
      at += n;
    }
    return absl::OkStatus();
  };
  EG_RETURN_IF_ERROR(reader->ReadAll(take));
  cut.updates_applied = reader->counters().updates_applied();
  if (reader->counters().skips_size() > static_cast<int>(kSkipReasonsMax) + 1)
    return absl::DataLossError(absl::StrCat("too many reasons of skips: path=", source.uri));
  for (const v1::SkipCount& skip : reader->counters().skips()) cut.skips[skip.reason()] = skip.count();
  std::map<ClosureId, Ledger::Open> open;
  for (const v1::OpenClosure& closure : reader->ledger().open()) {
    open[ClosureId(closure.closure())] = {snapshot::FromProto<Attempt>(closure.attempt()), {closure.bits().begin(), closure.bits().end()}};
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
          "a closure is open in the snapshot, another plan cannot begin from it: variable=", options.settings.variable,
          " shard=", options.settings.shard.ToString(), " closure=", cut.ledger.open().begin()->first.ToString(), " path=", options.source.uri));
    }
    cut.ledger = Ledger::Restored(*options.replace_ledger, {}, {});
  }
  if (options.forget_attempts) cut.ledger = cut.ledger.WithoutAttempts();
  return Shard::Restore(options.settings, std::move(cut), options.epoch, options.start, options.refused, options.mutant);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Shard>> RestoreShard(const RestoreOptions& options) {
  auto shard = ReadShard(options);
  if (shard.ok() || absl::StrContains(shard.status().message(), options.source.uri)) return shard;
  absl::Status named(shard.status().code(), absl::StrCat(shard.status().message(), ": path=", options.source.uri));
  shard.status().ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { named.SetPayload(url, payload); });
  return named;
}

}  // namespace evergrad::ps_server

#include "ps_server/service/shard_spec.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/describe.h"
#include "common/client/protocol.h"
#include "common/client/wire_type.h"
#include "common/sharding/slots.h"
#include "common/snapshot/shard_file.h"

namespace evergrad::ps_server {
namespace {

constexpr std::size_t kNameBytesMax = 512;

absl::Status CheckName(const std::string& name, absl::string_view what, std::uint32_t shard) {
  if (!name.empty() && name.size() <= kNameBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " name is empty or too long: shard=", shard,
                                                 " bytes=", name.size(), " max=", kNameBytesMax));
}

absl::Status CheckDType(v1::DType dtype, const std::string& name) {
  if (dtype == v1::DTYPE_FLOAT32) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("dtype is not built, expected DTYPE_FLOAT32: variable=", name,
                   " got=", static_cast<int>(dtype)));
}

InitializerSettings SettingsOf(const v1::Initializer& from) {
  return {from.type(),   from.value(),   from.mean(), from.stddev(),
          from.fan_in(), from.fan_out(), from.seed()};
}

absl::StatusOr<SlotSettings> SettingsOf(const v1::SlotSpec& from, std::uint32_t shard) {
  const auto bad = [&](auto&&... text) {
    return absl::InvalidArgumentError(absl::StrCat(text..., ": shard=", shard));
  };
  if (from.slots() == 0 || from.slots() > sharding::kSlotsMax || from.slot() >= from.slots())
    return bad("the slot is out of range: slot=", from.slot(), " slots=", from.slots(),
               " max=", sharding::kSlotsMax);
  if (from.tables_size() == 0 || from.tables_size() > snapshot::kTablesMax)
    return bad("a slot needs 1 to ", snapshot::kTablesMax, " tables, got=", from.tables_size());
  SlotSettings slot{from.slot(), from.slots(), {}, {}};
  for (int t = 0; t < from.tables_size(); ++t) {
    const v1::TableSpec& spec = from.tables(t);
    EG_RETURN_IF_ERROR(CheckName(spec.name(), "table", shard));
    EG_RETURN_IF_ERROR(CheckDType(spec.dtype(), spec.name()));
    if (spec.index() != static_cast<std::uint32_t>(t))
      return bad("tables are not in order of their index: table=", spec.name(), " want=", t,
                 " got=", spec.index());
    storage::TableSettings table;
    table.name = spec.name();
    table.dimension = spec.dimension();
    table.initializer = SettingsOf(spec.initializer());
    table.optimizer = client::OptimizerOf(spec.optimizer());
    table.admit_after = spec.admit_after();
    table.default_row = static_cast<float>(spec.default_row());
    table.ttl_steps = spec.ttl_steps();
    table.bytes_max = spec.bytes_max() / from.slots();
    if (spec.bytes_max() != 0 && table.bytes_max == 0)
      return bad("bytes_max of a table is less than one byte per slot: table=", spec.name());
    table.evict_lru = spec.evict_lru();
    slot.tables.push_back(std::move(table));
    EG_ASSIGN_OR_RETURN(slot.wire.emplace_back(), client::WireTypeOf(spec));
  }
  return slot;
}

}  // namespace

absl::StatusOr<ShardSettings> ShardSettingsOf(JobUid job, const v1::ShardSpec& spec) {
  ShardSettings settings;
  settings.job = job;
  settings.shard = ShardId(spec.shard());
  if (spec.has_slot()) {
    EG_ASSIGN_OR_RETURN(settings.slot, SettingsOf(spec.slot(), spec.shard()));
    settings.variable = absl::StrCat("slot ", spec.slot().slot(), " of ", spec.slot().slots());
    return settings;
  }
  const v1::VariableSpec& variable = spec.variable();
  EG_RETURN_IF_ERROR(CheckName(variable.name(), "variable", spec.shard()));
  EG_RETURN_IF_ERROR(CheckDType(variable.dtype(), variable.name()));
  settings.variable = variable.name();
  EG_ASSIGN_OR_RETURN(settings.wire, client::WireTypeOf(variable));
  settings.variable_index = variable.index();
  EG_ASSIGN_OR_RETURN(settings.variable_shape,
                      tensor::Shape::Checked({variable.shape().begin(), variable.shape().end()}));
  settings.row_begin = spec.row_begin();
  settings.row_end = spec.row_end();
  settings.initializer = SettingsOf(variable.initializer());
  settings.optimizer = client::OptimizerOf(variable.optimizer());
  return settings;
}

std::optional<snapshot::ShardFileReader::Expected> ExpectedFile(std::uint64_t bytes,
                                                                const std::string& sha256) {
  snapshot::ShardFileReader::Expected expected{bytes, {}};
  if (sha256.size() != expected.sha256.size()) return std::nullopt;
  std::memcpy(expected.sha256.data(), sha256.data(), sha256.size());
  return expected;
}

absl::StatusOr<RestoreOptions> RestoreOptionsOf(const v1::SnapshotSource& source) {
  RestoreOptions what;
  what.source.uri = source.uri();
  if (source.uri().empty()) return absl::InvalidArgumentError("the snapshot has no path");
  what.source.expected = ExpectedFile(source.bytes(), source.sha256());
  if (!what.source.expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("the SHA-256 of a snapshot has a wrong length: path=", source.uri(),
                     " want=", sizeof(snapshot::Sha256Digest), " got=", source.sha256().size()));
  }
  what.source.file_job = JobUid(source.job_uid());
  what.source.plan_fingerprint = source.plan_fingerprint();
  what.forget_attempts = source.resumed();
  if (source.replace_ledger()) {
    EG_ASSIGN_OR_RETURN(what.replace_ledger, client::FromProto(source.done()));
  }
  return what;
}

}  // namespace evergrad::ps_server

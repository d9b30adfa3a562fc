#include "coordinator/jobs/plan_builder.h"

#include <openssl/evp.h>

#include <algorithm>
#include <set>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/checked_math.h"
#include "common/base/status.h"
#include "common/client/describe.h"
#include "common/client/protocol.h"
#include "common/client/request_limits.h"
#include "common/client/wire_type.h"
#include "common/optimizers/registry.h"
#include "common/sharding/partitioner.h"
#include "common/snapshot/shard_file.h"
#include "coordinator/jobs/job_kind.h"
#include "coordinator/scheduler/placement.h"

namespace evergrad::coordinator {
namespace {

constexpr std::uint64_t kPlanBytesMax = 1536u << 10;
// The job keeps each evaluation closure with its metrics in memory until the round is over.
constexpr std::uint64_t kEvalClosuresMax = 1ull << 20;

std::string Serialized(const google::protobuf::Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

// Each slot is one shard and holds rows of every table; slots follow the dense shards. The final
// sizes of slots are unknown, so all slots are placed with an equal size: an equal part of the
// tables' limit (bytes_max), but at least kSlotBytesMin.
constexpr std::uint64_t kSlotBytesMin = 1ull << 20;

// Returns an error if an entry of `optimizers` matches no name, because another optimizer would
// then train the variable that the user meant.
absl::Status CheckOptimizers(const config::JobSpec& spec, const v1::DescribeResult& described) {
  std::vector<absl::string_view> names;
  for (const v1::VariableSpec& variable : described.variables())
    names.emplace_back(variable.name());
  for (const v1::TableSpec& table : described.tables()) names.emplace_back(table.name());
  for (const config::OptimizerRule& rule : spec.optimizers) {
    if (rule.match.empty() || std::any_of(names.begin(), names.end(), [&](absl::string_view name) {
          return config::GlobMatches(rule.match, name);
        }))
      continue;
    return UserError(absl::InvalidArgumentError(absl::StrCat(
        "spec.optimizers: no variable and no table of this name: match=", rule.match,
        "; the model has ",
        absl::StrJoin(
            names.begin(),
            names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), std::size_t{20})),
            ", "),
        names.size() > 20 ? ", …" : "")));
  }
  return absl::OkStatus();
}

absl::Status CheckClosures(const plan::Plan& plan) {
  if (plan.closures() > kClosuresMax)
    return UserError(absl::InvalidArgumentError(absl::StrCat(
        "too many closures in the plan: closures=", plan.closures(), " max=", kClosuresMax)));
  if (plan.eval_closures() > kEvalClosuresMax) {
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("too many evaluation closures; use a larger spec.data.batch_size or "
                     "spec.training.steps_per_closure: closures=",
                     plan.eval_closures(), " max=", kEvalClosuresMax)));
  }
  return absl::OkStatus();
}

absl::Status CheckVariableCount(const v1::DescribeResult& described) {
  if (described.variables_size() == 0 && described.tables_size() == 0)
    return absl::InvalidArgumentError("the describe result has no variables");
  if (described.variables_size() > config::kVariablesMax) {
    return UserError(absl::InvalidArgumentError(absl::StrCat(
        "too many variables: count=", described.variables_size(), " max=", config::kVariablesMax)));
  }
  return absl::OkStatus();
}

absl::Status CheckVariable(const v1::VariableSpec& variable, std::set<std::string>* names) {
  if (variable.name().empty() || variable.name().size() > 512)
    return absl::InvalidArgumentError(
        "a variable in the describe result has an empty or too long name");
  if (!names->insert(variable.name()).second)
    return absl::InvalidArgumentError(
        absl::StrCat("duplicate variable name: name=", variable.name()));
  if (variable.dtype() != v1::DTYPE_FLOAT32)
    return absl::InvalidArgumentError(
        absl::StrCat("this build does not support the dtype of a variable: name=", variable.name(),
                     " dtype=", variable.dtype()));
  return client::WireTypeOf(variable).status();
}

// Adds a shard for each range of rows.
void AddShards(const v1::VariableSpec& variable, std::uint32_t index, const tensor::Shape& shape,
               const std::vector<sharding::RowRange>& ranges, BuiltPlan* built) {
  const std::uint64_t row_bytes =
      shape.row_elements() * tensor::DTypeBytes(tensor::DType::kFloat32);
  const std::uint32_t slots = optimizers::StatesPerValue(client::OptimizerOf(variable.optimizer()));
  for (const sharding::RowRange& range : ranges) {
    v1::ShardSpec* shard = built->message.add_shards();
    shard->set_shard(static_cast<std::uint32_t>(built->message.shards_size() - 1));
    *shard->mutable_variable() = variable;
    shard->mutable_variable()->set_index(index);
    shard->set_row_begin(range.begin);
    shard->set_row_end(range.end);
    built->shard_bytes.push_back((range.end - range.begin) * row_bytes * (1 + slots));
    built->server_bytes += built->shard_bytes.back();
  }
}

absl::Status AddVariables(const v1::DescribeResult& described,
                          const sharding::Partitioner& partitioner, const SectionLimit& limit,
                          std::set<std::string>* names, BuiltPlan* built) {
  std::uint32_t index = 0;
  for (const v1::VariableSpec& variable : described.variables()) {
    EG_RETURN_IF_ERROR(CheckVariable(variable, names));
    const std::vector<std::uint64_t> dims(variable.shape().begin(), variable.shape().end());
    absl::StatusOr<tensor::Shape> shape = tensor::Shape::Checked(dims);
    if (!shape.ok())
      return UserError(absl::InvalidArgumentError(
          absl::StrCat("variable ", variable.name(), ": ", shape.status().message())));
    EG_RETURN_IF_ERROR(
        limit.CheckRow("variable", variable.name(),
                       shape->row_elements() * tensor::DTypeBytes(tensor::DType::kFloat32)));
    absl::StatusOr<std::vector<sharding::RowRange>> ranges =
        sharding::PartitionRows(partitioner, *shape, limit.bytes);
    if (!ranges.ok())
      return UserError(absl::Status(
          ranges.status().code(),
          absl::StrCat("variable ", variable.name(), ": ", ranges.status().message())));
    if (built->message.shards_size() + ranges->size() > kShardsMax) {
      return UserError(absl::InvalidArgumentError(absl::StrCat(
          "too many shards; use larger shards in spec.strategy.partitioner: at_variable=",
          variable.name(), " max=", kShardsMax)));
    }
    AddShards(variable, index++, *shape, *ranges, built);
  }
  return absl::OkStatus();
}

// Checks that a row of each table, together with its id, fits in one request.
absl::Status CheckTableRows(const v1::DescribeResult& described, const SectionLimit& limit) {
  for (const v1::TableSpec& table : described.tables())
    EG_RETURN_IF_ERROR(
        limit.CheckRow("table", table.name(),
                       std::uint64_t{table.dimension()} * sizeof(float) + sizeof(std::int64_t)));
  return absl::OkStatus();
}

absl::Status AddTables(const v1::DescribeResult& described, std::uint32_t slots,
                       std::set<std::string>* names, BuiltPlan* built) {
  if (described.tables_size() == 0) return absl::OkStatus();
  if (described.tables_size() > snapshot::kTablesMax) {
    return UserError(absl::InvalidArgumentError(absl::StrCat(
        "too many tables: count=", described.tables_size(), " max=", snapshot::kTablesMax)));
  }
  std::uint64_t bytes_max = 0;
  for (const v1::TableSpec& table : described.tables()) {
    if (table.name().empty() || table.name().size() > 512 || table.dimension() == 0 ||
        table.dtype() != v1::DTYPE_FLOAT32)
      return absl::InvalidArgumentError(
          "a table in the describe result has an invalid name, dimension or dtype");
    EG_RETURN_IF_ERROR(client::WireTypeOf(table).status());
    if (!names->insert(table.name()).second)
      return absl::InvalidArgumentError(
          absl::StrCat("duplicate variable name: name=", table.name()));
    v1::TableSpec& added = *built->message.add_tables();
    added = table;
    added.set_index(static_cast<std::uint32_t>(built->message.tables_size() - 1));
    bytes_max = CheckedAdd(bytes_max, table.bytes_max()).value_or(~0ull);
  }
  if (built->message.shards_size() + std::size_t{slots} > kShardsMax) {
    return UserError(absl::InvalidArgumentError(absl::StrCat(
        "too many shards; use larger shards in spec.strategy.partitioner, or fewer slots: slots=",
        slots, " max=", kShardsMax)));
  }
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    v1::ShardSpec* shard = built->message.add_shards();
    shard->set_shard(static_cast<std::uint32_t>(built->message.shards_size() - 1));
    shard->mutable_slot()->set_slot(slot);
    shard->mutable_slot()->set_slots(slots);
    built->shard_bytes.push_back(std::max(kSlotBytesMin, bytes_max / slots));
  }
  built->server_bytes = CheckedAdd(built->server_bytes, bytes_max).value_or(~0ull);
  return absl::OkStatus();
}

}  // namespace

v1::ShardSpec ShardSpecOf(const v1::Plan& plan, ShardId shard) {
  v1::ShardSpec spec = plan.shards(static_cast<int>(shard.value()));
  if (spec.has_slot()) *spec.mutable_slot()->mutable_tables() = plan.tables();
  return spec;
}

std::string Fingerprint(const config::JobSpec& spec, const v1::Plan& plan,
                        absl::string_view data_fingerprint) {
  v1::Plan same = plan;
  same.clear_fingerprint();
  same.clear_data_fingerprint();  // It is hashed separately.
  same.clear_epochs();
  same.clear_eval_examples();
  same.clear_eval_batch_size();
  same.clear_eval_steps_per_closure();
  for (v1::ShardSpec& shard : *same.mutable_shards()) {
    if (shard.has_slot()) continue;
    shard.mutable_variable()->mutable_optimizer()->clear_learning_rate();
    shard.mutable_variable()->clear_wire_dtype();
  }
  for (v1::TableSpec& table : *same.mutable_tables()) {
    table.mutable_optimizer()->clear_learning_rate();
    table.clear_wire_dtype();
    // A memory limit is not part of the plan: a job that has reached its limit can resume with a
    // higher limit.
    table.clear_bytes_max();
  }
  config::JobSpec model = spec;
  model.optimizer.learning_rate = 1;
  for (config::OptimizerRule& rule : model.optimizers) rule.learning_rate = 1;
  model.training.epochs = 1;
  model.training.wire.clear();
  model.training.evaluate_every_epochs = 1;
  model.training.precision = config::TrainingSpec().precision;
  model.training.on_lost_updates = config::TrainingSpec().on_lost_updates;
  model.training.on_over_budget = config::TrainingSpec().on_over_budget;
  model.data.train.reset();  // The fingerprint of the data represents its files.
  model.data.eval.reset();
  model.checkpoint = {};
  model.resources = {};
  for (config::LayerSpec& layer : model.model.layers) layer.dtype.clear();
  for (config::TableSpec& table : model.model.tables) table.bytes_max = 0;
  model.counting.table_bytes_max = 0;
  // The shards of the plan contain the partitions of the variables. Settings of workers do not
  // change a plan.
  model.strategy.partitioner = {};
  model.strategy.pipeline = 0;
  model.strategy.deterministic = false;
  model.counting.step_ms = 0;
  const std::string text =
      absl::StrCat(Serialized(same), "\n", config::EmitGiven(model), "\n", data_fingerprint);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

absl::StatusOr<BuiltPlan> BuildPlan(const config::JobSpec& spec,
                                    const v1::DescribeResult& described,
                                    const SectionLimit& limit) {
  const JobKind& kind = JobKind::Of(spec);
  const plan::PlanSpec numbers = kind.PlanNumbers(spec, described);
  absl::StatusOr<plan::Plan> plan = plan::Plan::Create(numbers);
  if (!plan.ok()) return UserError(plan.status());
  EG_RETURN_IF_ERROR(CheckClosures(*plan));
  EG_RETURN_IF_ERROR(CheckVariableCount(described));
  EG_RETURN_IF_ERROR(client::CheckWireRules(spec, described));
  EG_RETURN_IF_ERROR(CheckOptimizers(spec, described));
  BuiltPlan built{*std::move(plan), {}, {}, 0};
  client::FillPlan(numbers, &built.message);
  std::set<std::string> names;
  EG_RETURN_IF_ERROR(AddVariables(described, kind.PartitionerOf(spec), limit, &names, &built));
  EG_RETURN_IF_ERROR(CheckTableRows(described, limit));
  EG_RETURN_IF_ERROR(AddTables(described, spec.strategy.table_slots, &names, &built));
  built.message.set_data_fingerprint(described.data_fingerprint());
  // The plan is sent in one message together with the job's YAML and the map.
  if (built.message.ByteSizeLong() > kPlanBytesMax) {
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("the plan is too large; use larger shards or shorter names: bytes=",
                     built.message.ByteSizeLong(), " max=", kPlanBytesMax)));
  }
  built.message.set_fingerprint(Fingerprint(spec, built.message, described.data_fingerprint()));
  return built;
}

// ---------------------------------------------------------------- the largest part of a variable

SectionLimit SectionLimit::Of(const std::map<std::string, v1::Endpoint>& servers) {
  SectionLimit least;
  for (const auto& [identity, endpoint] : servers) {
    const client::RequestLimits limits = client::RequestLimits::Of(endpoint);
    if (limits.section_bytes_max() >= least.bytes) continue;
    least = {limits.section_bytes_max(), identity, limits.section_flag()};
  }
  return least;
}

absl::Status SectionLimit::CheckRow(absl::string_view kind, absl::string_view name,
                                    std::uint64_t row_bytes) const {
  if (row_bytes <= bytes || server.empty()) return absl::OkStatus();
  return UserError(absl::InvalidArgumentError(absl::StrCat(
      kind, " ", name, ": one row exceeds the limit of one request to ps_server/", server,
      ": row_bytes=", row_bytes, " max=", bytes, "; raise the limit of that server, now ", flag)));
}

absl::Status SectionLimit::CheckShards(const v1::Plan& plan) const {
  if (server.empty()) return absl::OkStatus();
  for (const v1::ShardSpec& shard : plan.shards()) {
    if (shard.has_slot()) continue;
    const v1::VariableSpec& variable = shard.variable();
    std::uint64_t row_elements = 1;  // No overflow: the shapes of a plan are checked.
    for (int i = 1; i < variable.shape_size(); ++i) row_elements *= variable.shape(i);
    const absl::StatusOr<tensor::WireType> wire = client::WireTypeOf(variable);
    if (!wire.ok()) return wire.status();
    const std::uint64_t shard_bytes =
        (shard.row_end() - shard.row_begin()) * row_elements * tensor::WireBytes(*wire);
    if (shard_bytes <= bytes) continue;
    return UserError(absl::InvalidArgumentError(absl::StrCat(
        "variable ", variable.name(), ": its rows ", shard.row_begin(), " to ", shard.row_end(),
        " exceed the limit of one request to ps_server/", server, ": bytes=", shard_bytes,
        " max=", bytes, "; raise the limit of that server, now ", flag,
        ", or submit the job again while that server is connected, so that the variable is "
        "partitioned to fit the server's limit")));
  }
  return absl::OkStatus();
}

}  // namespace evergrad::coordinator

// A job as typed values, read from YAML (configs/reference.yaml shows every key).
//
// Unknown keys, wrong types, impossible combinations, duplicate keys, anchors and aliases are
// refused. All mistakes are reported together, each with file:line:column, the expected value and
// the nearest valid name. The defaults are those of configs/reference.yaml, which is generated from
// the same tables (job_schema.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/counting_spec.h"
#include "common/data_formats/data_spec.h"
#include "common/layers/layer_spec.h"
#include "common/optimizers/settings.h"
#include "common/schema/location.h"

namespace evergrad::config {

// An embedding table, shared by the embedding layers that name it.
struct TableSpec {
  std::string name;
  std::uint32_t dimension = 0;
  InitializerSpec initializer{"truncated_normal"};
  double l2 = 0;  // embeddings_regularizer, applied to the rows of a batch
  std::uint32_t admit_after = 1;
  double default_row = 0;
  std::uint64_t ttl_steps = 0;
  std::uint64_t bytes_max = 0;
  std::string evict = "none";  // lru | none
  Location where;
  friend bool operator==(const TableSpec&, const TableSpec&) = default;
};
struct InputSpec {
  std::string name;
  std::vector<std::uint64_t> shape;  // shape of one example; empty for one number
  Location where;
  friend bool operator==(const InputSpec&, const InputSpec&) = default;
};
struct ModelSpec {
  std::vector<InputSpec> inputs;
  std::vector<LayerSpec> layers;
  std::vector<TableSpec> tables;
  std::vector<LossSpec> losses;      // exactly one today
  std::vector<std::string> metrics;  // accuracy | binary_accuracy | auc | root_mean_squared_error
  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};
// An entry of `optimizers`.
struct OptimizerRule : optimizers::Settings {
  std::string match;  // a glob pattern for names of variables and tables; "" for all
  friend bool operator==(const OptimizerRule&, const OptimizerRule&) = default;
};
struct PartitionerSpec {
  std::string type = "min_size";  // fixed_shards | min_size | max_size
  std::uint64_t num_shards = 1;
  std::uint64_t min_shard_bytes = 256 * 1024, max_shard_bytes = 0;
  std::optional<std::uint64_t> max_shards;
  friend bool operator==(const PartitionerSpec&, const PartitionerSpec&) = default;
};
struct StrategySpec {
  std::string mode = "async";  // other values are refused by name
  std::uint32_t pipeline = 0;  // 0 | 1
  bool deterministic = false;  // requires one worker and pipeline 0
  PartitionerSpec partitioner;
  std::uint32_t table_slots = 128;  // number of shards that hold the rows of all tables
  friend bool operator==(const StrategySpec&, const StrategySpec&) = default;
};
// An entry of `training.wire_dtype`.
struct WireRule {
  std::string match;  // glob pattern for names of variables and tables; "" for all
  std::string dtype;  // float32 | bf16 | fp16
  friend bool operator==(const WireRule&, const WireRule&) = default;
};
struct TrainingSpec {
  std::uint32_t epochs = 1;
  std::uint32_t steps_per_closure = 16;
  std::uint32_t evaluate_every_epochs = 1;  // 0 means at the end only
  std::uint64_t seed = 0;                   // for initializers and dropout
  // Reaction if a closure must run again and a user's error makes that impossible (LEDGER line
  // 20b): fail or report.
  std::string on_lost_updates = "fail";
  // Reaction if a server is out of memory for a push (LEDGER line 15, OVER_BUDGET): fail or pause.
  std::string on_over_budget = "fail";
  // The type in which steps are computed, named like the policies of Keras: float32, tf32,
  // mixed_bfloat16 or mixed_float16. Servers keep the values in float32. The precision is not part
  // of the plan.
  std::string precision = "float32";
  // The first entry whose `match` fits applies. If no entry fits, the type is float32. The entries
  // are not part of the plan.
  std::vector<WireRule> wire;
  friend bool operator==(const TrainingSpec&, const TrainingSpec&) = default;
};
// Interval and place of checkpoints (LEDGER lines 27, 28). These settings are not part of the plan,
// so they may change from one submission to the next.
struct CheckpointSpec {
  bool on = true;  // false for `checkpoint: off`
  // Whether the job file has the section `checkpoint`. If true, the job fails when it cannot be
  // saved. If false, the job continues, and reports that it is not saved.
  bool given = false;
  std::chrono::milliseconds every{60000};
  std::uint32_t keep = 3;  // number of manifests kept
  bool resume = false;     // resume from the newest manifest of an earlier job of this name
  // Absolute path or file:// URI after resolution; "" for the job's runs folder.
  std::string directory;
  friend bool operator==(const CheckpointSpec&, const CheckpointSpec&) = default;
};
// Limits of a job on a cluster that runs several jobs. The limits are not part of the plan.
struct ResourcesSpec {
  double share = 1;  // weight in the division of workers among the running jobs
  // Limit of values and optimizer state of all variables of the job; 0 for no limit.
  std::uint64_t server_memory_bytes_max = 0;
  friend bool operator==(const ResourcesSpec&, const ResourcesSpec&) = default;
};
// A job with `spec.type: functions`. A client's schedule() creates its closures; workers built with
// the SDK contain the code of the closures.
struct FunctionVariable {
  std::string name;
  std::vector<std::uint64_t> shape;
  InitializerSpec initializer{"zeros"};
  std::optional<optimizers::Settings> optimizer;  // nullopt for the job's optimizer
  friend bool operator==(const FunctionVariable&, const FunctionVariable&) = default;
};
struct FunctionsSpec {
  std::vector<FunctionVariable> variables;
  std::uint32_t queue_limit = 1024;  // limit of closures that are scheduled and have not ended
  // Limit of the bytes of arguments, which are kept until snapshots hold the effect of their
  // closures.
  std::uint64_t argument_bytes_max = 16ull << 20;
  // Limit of the bytes of results, which are kept until they are released.
  std::uint64_t result_bytes_max = 16ull << 20;
  friend bool operator==(const FunctionsSpec&, const FunctionsSpec&) = default;
};
struct JobSpec {
  std::string name;
  std::string type = "training";  // the name of a JobType (job_type.h)
  DataSpec data;
  ModelSpec model;
  optimizers::Settings optimizer;  // `optimizer`
  // The entries of the key `optimizers`. The first entry whose `match` fits a variable or table
  // applies to it. If there are entries, `optimizer` is unused.
  std::vector<OptimizerRule> optimizers;
  Location optimizers_where;
  StrategySpec strategy;
  TrainingSpec training;
  CountingSpec counting;
  FunctionsSpec functions;
  CheckpointSpec checkpoint;
  ResourcesSpec resources;
  friend bool operator==(const JobSpec&, const JobSpec&) = default;
};

// Returns the settings for the variable or table `name`, or nullptr if no entry of `optimizers`
// matches it. The result points into `spec`.
const optimizers::Settings* OptimizerFor(const JobSpec& spec, absl::string_view name);
// The largest number of variables in a job.
inline constexpr int kVariablesMax = 4096;
// Returns the wire type (float32, bf16 or fp16) of the variable or table `name`.
std::string WireTypeFor(const JobSpec& spec, absl::string_view name);
// Returns whether `name` matches the pattern. `*` matches any text, `?` matches one character.
bool GlobMatches(absl::string_view pattern, absl::string_view name);

// An override such as `--set spec.training.epochs=3`. Overrides are applied in order. Their values
// are checked like values of the file, and errors name "<--set N>" as the file.
struct Override {
  std::string path, value;  // value is YAML
  // "" for `--set`; otherwise the file from which `--set-file path=file` read the value.
  std::string file;
};

struct ParseOptions {
  std::string file_name;  // for messages
  // The folder to which relative paths in `data` and `checkpoint` are relative. "" leaves the paths
  // unchanged, as the coordinator requires.
  std::string base_folder;
  // Values for ${NAME} and ${NAME:-default} in `data` and `checkpoint`.
  std::map<std::string, std::string> environment;
  std::vector<Override> overrides;
  // Whether the text comes from EmitSubmission. Such a text lists the places of the job's parts in
  // the user's file. Error messages then name these places, and not those in the text itself.
  bool submission = false;
};
// A data file that the job names.
struct DataPath {
  Location where;
  std::string path;                    // as written in the spec
  std::vector<std::string> variables;  // environment variables that the path contains
};
struct ParsedJob {
  std::optional<JobSpec> spec;    // set if there are no mistakes
  std::vector<Mistake> mistakes;  // in order of position
  // The paths in the order of the sections; a path that two sources share appears once.
  std::vector<DataPath> paths;
};
// Parses a job file. A text above 1 MiB, or nested deeper than 32, is refused at once. `$${` in
// `data` and `checkpoint` means a literal `${`.
ParsedJob ParseJob(absl::string_view yaml, const ParseOptions& options);

// Returns the effective YAML, with every value written out. If ParseJob reads the returned text,
// the result is an equal spec. If the job has no `checkpoint` section, the section is written as a
// comment, because its presence changes the job (CheckpointSpec::given).
std::string EmitYaml(const JobSpec& spec);
// Like EmitYaml, with a comment at the end (ParseOptions::submission). The comment holds the places
// of layers, inputs, tables, losses, optimizers and sources in the user's file, so that a worker's
// later error messages name the user's line. The comment is omitted if it would be too long.
std::string EmitSubmission(const JobSpec& spec);
// Returns `spec` on one line, without its name and without default values. A later version with
// additional keys returns the same line, if these keys have their default values and no default has
// changed.
std::string EmitGiven(const JobSpec& spec);
// Returns the text of configs/reference.yaml, made from the schema table: every key with its type,
// default, bounds and one line of explanation.
std::string ReferenceYaml();

}  // namespace evergrad::config

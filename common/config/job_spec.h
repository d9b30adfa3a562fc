// A training job as typed values, read from YAML (configs/reference.yaml shows every key).
//
// Unknown keys, wrong types, impossible combinations, duplicate keys, anchors and aliases are
// refused, all reported together, each with file:line:column, what was expected and the nearest
// valid name. Defaults are those of configs/reference.yaml, which is generated from the same table.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
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
  double l2 = 0;  // embeddings_regularizer, of the rows of a batch
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
  std::vector<std::uint64_t> shape;  // of one example; empty: one number
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
  std::string match;  // a glob of the names of variables and tables; "": all of them
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
  std::string mode = "async";  // others are refused by name
  std::uint32_t pipeline = 0;  // 0 | 1
  bool deterministic = false;  // only with one worker and pipeline 0
  PartitionerSpec partitioner;
  std::uint32_t table_slots = 128;  // shards that the rows of all tables are spread over
  friend bool operator==(const StrategySpec&, const StrategySpec&) = default;
};
// An entry of `training.wire_dtype`.
struct WireRule {
  std::string match;  // glob of variable and table names; "": all
  std::string dtype;  // float32 | bf16 | fp16
  friend bool operator==(const WireRule&, const WireRule&) = default;
};
struct TrainingSpec {
  std::uint32_t epochs = 1;
  std::uint32_t steps_per_closure = 16;
  std::uint32_t evaluate_every_epochs = 1;  // 0: at the end only
  std::uint64_t seed = 0;                   // initialisers, dropout
  // What a re-run that a user's error makes impossible does to the job (LEDGER line 20b): fail |
  // report.
  std::string on_lost_updates = "fail";
  // What a push that a server has no room for does to the job (LEDGER line 15, OVER_BUDGET): fail |
  // pause.
  std::string on_over_budget = "fail";
  // What steps are computed in (Keras' policies): float32 | tf32 | mixed_bfloat16 | mixed_float16.
  // Servers keep float32. No part of the plan.
  std::string precision = "float32";
  std::vector<WireRule> wire;  // the first whose `match` fits; none: float32. No part of the plan
  friend bool operator==(const TrainingSpec&, const TrainingSpec&) = default;
};
// How often the shards are saved, and where (LEDGER lines 27, 28). No part of the plan: it may
// change from one submission to the next.
struct CheckpointSpec {
  bool on = true;      // false: `checkpoint: off`
  bool given = false;  // the job file has the section: the job fails if it cannot be saved;
                       // without the section it continues and reports that it is not saved
  std::chrono::milliseconds every{60000};
  std::uint32_t keep = 3;  // manifests
  bool resume = false;     // go on from the newest manifest of an earlier job of this name
  std::string
      directory;  // absolute path or file:// URI after resolution; "": in the job's runs folder
  friend bool operator==(const CheckpointSpec&, const CheckpointSpec&) = default;
};
// What a job may take of a cluster that others use, too. No part of the plan.
struct ResourcesSpec {
  double share = 1;  // of the workers, beside the shares of the other running jobs
  std::uint64_t server_memory_bytes_max =
      0;  // values and slots of all of its variables; 0: no limit of its own
  friend bool operator==(const ResourcesSpec&, const ResourcesSpec&) = default;
};
// spec.type: counting — the fault scenarios' job; accepted only by daemons started with
// --failpoints.
struct CountingSpec {
  std::uint64_t examples = 0;
  std::uint32_t shards = 8;   // of the [examples, 1] variable
  std::uint32_t step_ms = 0;  // each step waits this long on the clock seam
  std::uint32_t tables = 0;   // embedding tables beside
  std::uint64_t table_ids = 500,
                table_bytes_max = 0;  // ids of each; limit of the last one, 0: none
  std::string optimizer = "counting";
  friend bool operator==(const CountingSpec&, const CountingSpec&) = default;
};
// spec.type: functions — closures come from a client's schedule(), their code from workers built
// with the SDK.
struct FunctionVariable {
  std::string name;
  std::vector<std::uint64_t> shape;
  InitializerSpec initializer{"zeros"};
  std::optional<optimizers::Settings> optimizer;  // none: the job's
  friend bool operator==(const FunctionVariable&, const FunctionVariable&) = default;
};
struct FunctionsSpec {
  std::vector<FunctionVariable> variables;
  std::uint32_t queue_limit = 1024;                // closures scheduled and not ended
  std::uint64_t argument_bytes_max = 16ull << 20;  // kept until snapshots hold what they did
  std::uint64_t result_bytes_max = 16ull << 20;    // kept until released
  friend bool operator==(const FunctionsSpec&, const FunctionsSpec&) = default;
};
struct JobSpec {
  std::string name;
  std::string type = "training";  // training | counting | functions
  DataSpec data;
  ModelSpec model;
  optimizers::Settings optimizer;  // `optimizer`
  std::vector<OptimizerRule>
      optimizers;  // `optimizers`: the first whose `match` fits; then `optimizer` is not used
  Location optimizers_where;
  StrategySpec strategy;
  TrainingSpec training;
  CountingSpec counting;
  FunctionsSpec functions;
  CheckpointSpec checkpoint;
  ResourcesSpec resources;
  friend bool operator==(const JobSpec&, const JobSpec&) = default;
};

// The settings for the variable or table `name`; nullptr: no entry of `optimizers` matches it. The
// result points into `spec`.
const optimizers::Settings* OptimizerFor(const JobSpec& spec, absl::string_view name);
// The most floats that a row of a table may have, its values and what the optimizer keeps of it.
inline constexpr std::uint64_t kRowFloatsMax = 4096;
// A table's bytes_max counts, beside a row's floats and its counter of gradients, its place in the
// index. An id that waits for its admission has that place alone.
inline constexpr std::uint64_t kIndexBytesPerRow = 24;
// What gradients and values of the variable or table `name` are on the wire: float32, bf16 or fp16.
std::string WireTypeFor(const JobSpec& spec, absl::string_view name);
// `*` stands for any text, `?` for one character.
bool GlobMatches(absl::string_view pattern, absl::string_view name);

// `--set spec.training.epochs=3`, in order. Typed, with the same errors; file name "<--set N>".
struct Override {
  std::string path, value;  // value is YAML
  std::string file;  // "": `--set`; else the file that `--set-file path=file` read the value from
};

struct ParseOptions {
  std::string file_name;    // for messages
  std::string base_folder;  // relative paths of `data` and `checkpoint` are resolved against it; ""
                            // leaves them alone (the coordinator)
  std::map<std::string, std::string>
      environment;  // for ${NAME} and ${NAME:-default} in `data` and `checkpoint`
  std::vector<Override> overrides;
  // The text is EmitSubmission's: what it says of the places in its user's file is put into the
  // spec, in place of those in the text itself.
  bool submission = false;
};
// A file that the job names as data.
struct DataPath {
  Location where;
  std::string path;                    // as in the spec
  std::vector<std::string> variables;  // of the environment that it was made of
};
struct ParsedJob {
  std::optional<JobSpec> spec;    // set when there is no mistake
  std::vector<Mistake> mistakes;  // in order of position
  std::vector<DataPath> paths;    // in order of the sections; each once, where two sources share it
};
// Size cap 1 MiB, depth cap 32: refused at once. `$${` in `data` and `checkpoint` stands for a
// literal `${`.
ParsedJob ParseJob(absl::string_view yaml, const ParseOptions& options);

// The effective YAML: every value spelled out (a `checkpoint` section that the job does not have,
// in a comment: that it has none is a value, too). ParseJob of it gives an equal spec.
std::string EmitYaml(const JobSpec& spec);
// The same with the places of layers, inputs, tables, losses, optimizers and sources in the user's
// file, in a comment at its end: ParseOptions::submission. What a worker finds wrong later is then
// told with the line that its user wrote. Where it would be too long it is left out.
std::string EmitSubmission(const JobSpec& spec);
// `spec` without its name and without what is as by default, on one line: the same in a version
// that has more keys, as long as theirs are at their defaults and no default has changed.
std::string EmitGiven(const JobSpec& spec);
// configs/reference.yaml: every key with its type, default, bounds and one line of explanation,
// from the schema table.
std::string ReferenceYaml();

}  // namespace evergrad::config

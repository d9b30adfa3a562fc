#include "common/config/job_schema.h"

namespace evergrad::config {
namespace {

const Table<ResourcesSpec>& ResourcesTable() {
  static const Table<ResourcesSpec> table{
      "spec.resources",
      {RealNumber<ResourcesSpec>("share", &ResourcesSpec::share, {.min = 0.001, .max = 1000},
                                 "weight of the job when the workers are divided among the "
                                 "running jobs (--jobs-running-max of the coordinator)"),
       ByteSize<ResourcesSpec>(
           "server_memory_bytes_max", &ResourcesSpec::server_memory_bytes_max, 0, 1ull << 50,
           "memory limit for the job's variables and optimizer state on the servers; a table "
           "counts as its bytes_max. A job above the limit is refused when it is planned. 0 "
           "means no limit")},
      {"workers", "gpus", "priority", "cpus", "memory"}};
  return table;
}

const Table<JobSpec>& TrainingJobTable() {
  static const Table<JobSpec> table{
      "spec",
      {TypeKey(),
       Required(Section<JobSpec, DataSpec>("data", &JobSpec::data, &DataTable(), "the examples")),
       Required(Section<JobSpec, ModelSpec>("model", &JobSpec::model, &ModelTable(),
                                            "layers, loss, metrics")),
       OptimizerKey(), OptimizersKey(),
       Section<JobSpec, StrategySpec>("strategy", &JobSpec::strategy, &StrategyTable(),
                                      "how the work is distributed"),
       Section<JobSpec, TrainingSpec>("training", &JobSpec::training, &TrainingTable(),
                                      "length, evaluation and precision of the training"),
       CheckpointKey(), ResourcesKey()},
      SpecKeysNotBuilt()};
  return table;
}

constexpr JobType kTrainingJobs = {
    .name = "training", .trains_model = true, .table = TrainingJobTable};

}  // namespace

absl::Span<const JobType* const> JobTypes() {
  static constexpr const JobType* types[] = {&kTrainingJobs, &kFunctionsJobs, &kCountingJobs};
  return types;
}

const JobType& TypeOf(const JobSpec& spec) {
  for (const JobType* type : JobTypes())
    if (type->name == spec.type) return *type;
  return *JobTypes().front();
}

std::vector<std::string> NamesOfJobTypes() {
  std::vector<std::string> names;
  for (const JobType* type : JobTypes()) names.emplace_back(type->name);
  return names;
}

const Node* At(const Node& root, std::initializer_list<const char*> path) {
  const Node* node = &root;
  for (const char* key : path)
    if (node != nullptr) node = node->Find(key);
  return node;
}

Location KeyPlace(const Node* map, const char* key, const Location& otherwise) {
  const Node* node = map == nullptr ? nullptr : map->Find(key);
  return node == nullptr ? otherwise : node->where();
}

const NotBuilt& SpecKeysNotBuilt() {
  static const NotBuilt keys = {"predict", "export",     "early_stopping", "callbacks",
                                "tables",  "embeddings", "closures",       "resources"};
  return keys;
}

Key<JobSpec> TypeKey() {
  std::vector<std::string> names = NamesOfJobTypes();
  const std::string all = absl::StrJoin(names, ", ");
  names.erase(names.begin());
  return {"type",
          absl::StrCat("one of ", all),
          absl::StrCat("type of the job; the end of configs/reference.yaml has the keys of ",
                       absl::StrJoin(names, " and ")),
          false,
          [](Reader&, const Node&, JobSpec*) {},  // read earlier, because it selects this table
          [](const JobSpec& t) { return std::optional<Node>(MakeText(t.type)); }};
}

Key<JobSpec> ResourcesKey() {
  return Section<JobSpec, ResourcesSpec>(
      "resources", &JobSpec::resources, &ResourcesTable(),
      "share and limits of the job on a cluster that runs several jobs");
}

}  // namespace evergrad::config

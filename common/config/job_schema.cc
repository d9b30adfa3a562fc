#include "common/config/job_schema.h"

namespace evergrad::config {
namespace {

const NotBuilt kSpecKeysNotBuilt = {"predict", "export",     "early_stopping", "callbacks",
                                    "tables",  "embeddings", "closures",       "resources"};

Key<JobSpec> TypeKey() {
  return {"type",
          "one of training, functions, counting",
          "type of the job; for functions and counting, see the end of this file",
          false,
          [](Reader&, const Node&, JobSpec*) {},  // read earlier, because it selects this table
          [](const JobSpec& t) { return std::optional<Node>(MakeText(t.type)); }};
}

}  // namespace

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

const Table<ResourcesSpec>& ResourcesTable() {
  static const Table<ResourcesSpec> table{
      "spec.resources",
      {RealNumber<ResourcesSpec>("share", &ResourcesSpec::share, {.min = 0.001, .max = 1000},
                                 "weight of the job when workers are divided among the running "
                                 "jobs (--jobs-running-max of the coordinator)"),
       ByteSize<ResourcesSpec>(
           "server_memory_bytes_max", &ResourcesSpec::server_memory_bytes_max, 0, 1ull << 50,
           "limit for the job's variables on the servers, with optimizer state, and tables counted "
           "as their bytes_max; a job above it is refused once it is planned; 0: no limit")},
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
       Section<JobSpec, TrainingSpec>("training", &JobSpec::training, &TrainingTable(), "how long"),
       CheckpointKey(),
       Section<JobSpec, ResourcesSpec>("resources", &JobSpec::resources, &ResourcesTable(),
                                       "resources beside other jobs")},
      kSpecKeysNotBuilt};
  return table;
}

const Table<JobSpec>& CountingJobTable() {
  static const Table<DataSpec> data{"spec.data of a counting job", CommonDataKeys(),
                                    kDataKeysNotBuilt};
  static const Table<TrainingSpec> training = [] {
    Table<TrainingSpec> t = TrainingTable();
    std::erase_if(t.keys, [](const Key<TrainingSpec>& key) {
      return key.name == "precision";
    });  // a functions job computes no steps
    return t;
  }();
  static const Table<JobSpec> table{
      "spec of a counting job",
      {TypeKey(),
       Required(Section<JobSpec, CountingSpec>("counting", &JobSpec::counting, &CountingTable(),
                                               "the data that is counted")),
       Section<JobSpec, DataSpec>("data", &JobSpec::data, &data, "batches and order"),
       Section<JobSpec, StrategySpec>("strategy", &JobSpec::strategy, &StrategyTable(),
                                      "how the work is distributed"),
       Section<JobSpec, TrainingSpec>("training", &JobSpec::training, &training, "how long"),
       CheckpointKey(),
       Section<JobSpec, ResourcesSpec>("resources", &JobSpec::resources, &ResourcesTable(),
                                       "resources beside other jobs")},
      kSpecKeysNotBuilt};
  return table;
}

const Table<JobSpec>& FunctionsJobTable() {
  static const Table<StrategySpec> strategy = [] {
    Table<StrategySpec> t{
        "spec.strategy of a functions job",
        {},
        {"deterministic", "pipeline", "staleness", "workers", "codec", "replicas", "durability"}};
    for (const Key<StrategySpec>& key : StrategyTable().keys) {
      if (key.name == "mode" || key.name == "partitioner") t.keys.push_back(key);
    }
    return t;
  }();
  static const Table<TrainingSpec> training{
      "spec.training of a functions job",
      {Integer<TrainingSpec>("seed", &TrainingSpec::seed, 0, kAny,
                             "seed of initializers and of the random numbers in a step"),
       WireTypeKey()},
      {}};
  static const Table<JobSpec> table = [] {
    Key<JobSpec> checkpoint = CheckpointKey();
    checkpoint.read = [read = checkpoint.read](Reader& r, const Node& n, JobSpec* t) {
      read(r, n, t);
      if (const Node* resume = n.kind == Node::Kind::kMap ? n.Find("resume") : nullptr;
          resume != nullptr && t->checkpoint.resume)
        r.Report(resume->where(),
                 "not built yet: `resume: true` of a functions job: checkpoints do not hold the "
                 "arguments of its closures");
    };
    return Table<JobSpec>{
        "spec of a functions job",
        {TypeKey(),
         Required(Section<JobSpec, FunctionsSpec>("functions", &JobSpec::functions,
                                                  &FunctionsTable(),
                                                  "the variables and limits of the closures")),
         OptimizerKey(),
         Section<JobSpec, StrategySpec>("strategy", &JobSpec::strategy, &strategy,
                                        "how variables are partitioned"),
         Section<JobSpec, TrainingSpec>("training", &JobSpec::training, &training, "the seed"),
         checkpoint,
         Section<JobSpec, ResourcesSpec>("resources", &JobSpec::resources, &ResourcesTable(),
                                         "resources beside other jobs")},
        kSpecKeysNotBuilt};
  }();
  return table;
}

const Table<JobSpec>& JobTableOf(const JobSpec& spec) {
  return spec.type == "counting"    ? CountingJobTable()
         : spec.type == "functions" ? FunctionsJobTable()
                                    : TrainingJobTable();
}

}  // namespace evergrad::config

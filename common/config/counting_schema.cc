// The keys of a counting job.
#include "common/config/job_schema.h"

namespace evergrad::config {
namespace {

const Table<CountingSpec>& CountingTable() {
  static const Table<CountingSpec> table{
      "spec.counting",
      {Required(Integer<CountingSpec>("examples", &CountingSpec::examples, 1, 1ull << 32,
                                      "number of rows that are counted, one per example"),
                "600"),
       Integer<CountingSpec>("shards", &CountingSpec::shards, 1, 4096,
                             "number of partitions of the [examples, 1] variable"),
       Integer<CountingSpec>("step_ms", &CountingSpec::step_ms, 0, 60000,
                             "least duration of a step, in milliseconds"),
       Integer<CountingSpec>(
           "tables", &CountingSpec::tables, 0, 16,
           "number of additional embedding tables; each step pushes a few rows of each"),
       Integer<CountingSpec>("table_ids", &CountingSpec::table_ids, 1, 1u << 20,
                             "number of ids of each table"),
       ByteSize<CountingSpec>("table_bytes_max", &CountingSpec::table_bytes_max, 0, 1ull << 40,
                              "byte limit of the last table; 0 means no limit"),
       Choice<CountingSpec>("optimizer", &CountingSpec::optimizer, {"counting"},
                            {"sgd", "adam", "adagrad"}, "counting.",
                            "the optimizer of counting jobs, which adds the gradient to the weight "
                            "and twice the gradient to the optimizer state")},
      {}};
  return table;
}

// Returns the key `counting`. The optimizer in its section is also the optimizer of the job.
Key<JobSpec> CountingKey() {
  Key<JobSpec> key = Required(Section<JobSpec, CountingSpec>(
      "counting", &JobSpec::counting, &CountingTable(), "the data that is counted"));
  key.read = [read = key.read](Reader& r, const Node& n, JobSpec* t) {
    read(r, n, t);
    t->optimizer.type = t->counting.optimizer;
  };
  return key;
}

const Table<JobSpec>& CountingJobTable() {
  static const Table<DataSpec> data{"spec.data of a counting job", CommonDataKeys(),
                                    kDataKeysNotBuilt};
  static const Table<TrainingSpec> training = [] {
    Table<TrainingSpec> t = TrainingTable();
    std::erase_if(t.keys, [](const Key<TrainingSpec>& key) {
      return key.name == "precision";
    });  // a counting job computes no steps, so it has no precision
    return t;
  }();
  static const Table<JobSpec> table{
      "spec of a counting job",
      {TypeKey(), CountingKey(),
       Section<JobSpec, DataSpec>("data", &JobSpec::data, &data, "batches and order"),
       Section<JobSpec, StrategySpec>("strategy", &JobSpec::strategy, &StrategyTable(),
                                      "how the work is distributed"),
       Section<JobSpec, TrainingSpec>("training", &JobSpec::training, &training,
                                      "length of the job"),
       CheckpointKey(), ResourcesKey()},
      SpecKeysNotBuilt()};
  return table;
}

void ExplainCountingJob(std::string* out) {
  absl::StrAppend(out,
                  "\n# A counting job (spec.type: counting, for daemons started with --failpoints) "
                  "has, instead of model and optimizer:\n#   counting:\n");
  CountingTable().Explain(CountingSpec{}, "#     ", out);
}

}  // namespace

const JobType kCountingJobs = {.name = "counting",
                               .for_tests_only = true,
                               .table = CountingJobTable,
                               .explain = ExplainCountingJob};

const CountingSpec* CountingOf(const JobSpec& spec) {
  return &TypeOf(spec) == &kCountingJobs ? &spec.counting : nullptr;
}

}  // namespace evergrad::config

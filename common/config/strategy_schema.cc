#include "common/config/job_schema.h"

namespace evergrad::config {
namespace {

const NotBuilt kModesNotBuilt = {"sync", "bounded", "allreduce", "local"};

}  // namespace

const Variant<PartitionerSpec>& PartitionerVariant() {
  static const Variant<PartitionerSpec> variant = [] {
    Variant<PartitionerSpec> v{"the partitioner", "type", &PartitionerSpec::type, {}, {"hash"}, ""};
    const Key<PartitionerSpec> cap =
        OptionalInteger<PartitionerSpec>("max_shards", &PartitionerSpec::max_shards, 1, 1u << 20,
                                         "largest number of shards of one variable");
    PartitionerSpec defaults;
    v.cases.push_back({"min_size",
                       {"the partitioner min_size",
                        {ByteSize<PartitionerSpec>(
                             "min_shard_bytes", &PartitionerSpec::min_shard_bytes, 1, 1ull << 40,
                             "smallest size of a shard; a smaller variable is one shard"),
                         cap},
                        {}},
                       defaults});
    defaults.type = "max_size";
    defaults.max_shard_bytes = 0;
    v.cases.push_back(
        {"max_size",
         {"the partitioner max_size",
          {Required(ByteSize<PartitionerSpec>("max_shard_bytes", &PartitionerSpec::max_shard_bytes,
                                              1, 1ull << 40,
                                              "largest size of a shard; a larger row is one shard"),
                    "1MiB"),
           cap},
          {}},
         defaults});
    defaults.type = "fixed_shards";
    v.cases.push_back(
        {"fixed_shards",
         {"the partitioner fixed_shards",
          {Required(Integer<PartitionerSpec>(
                        "num_shards", &PartitionerSpec::num_shards, 1, 1u << 20,
                        "number of shards; a variable with fewer rows has one shard per row"),
                    "4")},
          {}},
         defaults});
    return v;
  }();
  return variant;
}

const Table<StrategySpec>& StrategyTable() {
  static const Table<StrategySpec> table = [] {
    Key<StrategySpec> partitioner{
        "partitioner",
        "mapping",
        "how variables are partitioned by rows into shards",
        false,
        [](Reader& r, const Node& n, StrategySpec* t) {
          PartitionerVariant().Read(r, n, &t->partitioner);
        },
        [](const StrategySpec& t) {
          return std::optional<Node>(PartitionerVariant().Write(t.partitioner));
        }};
    partitioner.explain_inner = [](std::string* out, const std::string& indent) {
      ExplainAlternatives(PartitionerVariant(), "the rule", "min_size", indent, out);
    };
    return Table<StrategySpec>{
        "spec.strategy",
        {Choice<StrategySpec>("mode", &StrategySpec::mode, {"async"}, kModesNotBuilt, "strategy.",
                              "synchronization between workers"),
         Integer<StrategySpec>(
             "pipeline", &StrategySpec::pipeline, 0, 1,
             "number of steps by which pulls run ahead. With 1, the pull of the next step overlaps "
             "the computation of the current step, so the pulled values are one step older"),
         Flag<StrategySpec>("deterministic", &StrategySpec::deterministic,
                            "whether two runs give bit-identical results, which requires one "
                            "worker and pipeline 0"),
         partitioner,
         Integer<StrategySpec>("table_slots", &StrategySpec::table_slots, 1, 65536,
                               "number of shards that hold the rows of all embedding tables. The "
                               "number cannot change during the job")},
        {"staleness", "backup_workers", "workers", "codec", "compression", "local_steps",
         "replicas", "durability"}};
  }();
  return table;
}

}  // namespace evergrad::config

// Tests how a plan is made from a description: its partitions, sizes and fingerprint, and the
// descriptions that are refused.
#include <catch2/catch.hpp>

#include "common/base/status.h"
#include "coordinator/jobs/plan_builder.h"

using namespace evergrad;
using namespace evergrad::coordinator;
using Catch::Matchers::Contains;

namespace {

config::JobSpec Spec() {
  config::JobSpec spec;
  spec.name = "mlp";
  spec.data.batch_size = 100;
  spec.training.epochs = 2;
  spec.training.steps_per_closure = 4;
  spec.optimizer.type = "adam";
  spec.strategy.partitioner.type = "min_size";
  spec.strategy.partitioner.min_shard_bytes = 64 * 1024;
  return spec;
}

v1::DescribeResult Described() {
  v1::DescribeResult d;
  d.set_train_examples(1000);
  d.set_eval_examples(200);
  d.set_data_fingerprint("files");
  const auto add = [&](const char* name, std::vector<std::uint64_t> shape) {
    v1::VariableSpec* v = d.add_variables();
    v->set_name(name);
    for (const std::uint64_t s : shape) v->add_shape(s);
    v->set_dtype(v1::DTYPE_FLOAT32);
    v->mutable_optimizer()->set_type("adam");
    v->mutable_optimizer()->set_learning_rate(0.001);
  };
  add("dense/kernel", {784, 256});
  add("dense/bias", {256});
  add("scale", {});
  return d;
}

}  // namespace

TEST_CASE(
    "a variable is partitioned further if a part exceeds a server's limit, and a row above it is "
    "refused by name") {
  SectionLimit limit{.bytes = 40 * 1024, .server = "3", .flag = "--budget-bytes-max 106496"};
  const auto cut = BuildPlan(Spec(), Described(), limit);
  REQUIRE(cut.ok());
  // A row has 1 KiB, so a partition has at most 40 rows.
  REQUIRE(cut->message.shards_size() == 20 + 2);
  CHECK(cut->message.shards(0).row_end() == 40);
  CHECK(limit.CheckShards(cut->message).ok());
  // After a restart the limit has the same number of bytes, but does not name a server. It must
  // give the same plan.
  CHECK(BuildPlan(Spec(), Described(), {.bytes = limit.bytes})->message.fingerprint() ==
        cut->message.fingerprint());
  CHECK(BuildPlan(Spec(), Described())->message.fingerprint() != cut->message.fingerprint());

  const absl::Status late = limit.CheckShards(BuildPlan(Spec(), Described())->message);
  CHECK(late.message() ==
        "variable dense/kernel: its rows 0 to 66 exceed the limit of one request to ps_server/3: "
        "bytes=67584 max=40960; raise the limit of that "
        "server, now --budget-bytes-max 106496, or submit the job again while that server is "
        "connected, "
        "so that "
        "the variable is partitioned to fit the server's limit");
  CHECK(BlameOf(late) == Blame::kUser);

  limit.bytes = 1023;
  const absl::Status row = BuildPlan(Spec(), Described(), limit).status();
  CHECK(row.message() ==
        "variable dense/kernel: one row exceeds the limit of one request to ps_server/3: "
        "row_bytes=1024 max=1023; raise the limit of that server, now "
        "--budget-bytes-max 106496");
  CHECK(BlameOf(row) == Blame::kUser);
  v1::DescribeResult rows;
  rows.set_train_examples(1000);
  v1::TableSpec* table = rows.add_tables();
  table->set_name("users");
  table->set_dimension(254);
  table->set_dtype(v1::DTYPE_FLOAT32);
  CHECK(BuildPlan(Spec(), rows, limit)
            .status()
            .message()
            .find("table users: one row exceeds the limit of one request to ps_server/3: "
                  "row_bytes=1024") == 0);
  table->set_dimension(253);
  CHECK(BuildPlan(Spec(), rows, limit).ok());
}

TEST_CASE("the limit of a job's servers is the lowest of their limits") {
  std::map<std::string, v1::Endpoint> servers;
  CHECK(SectionLimit::Of(servers).server.empty());
  servers["0"];  // this server reports no limit
  CHECK(SectionLimit::Of(servers).server.empty());
  servers["1"].set_budget_bytes_max(256u << 20);
  servers["1"].set_frame_bytes_max(1u << 30);
  servers["2"].set_budget_bytes_max(256u << 20);
  servers["2"].set_frame_bytes_max(16u << 20);
  const SectionLimit limit = SectionLimit::Of(servers);
  CHECK(limit.server == "2");
  CHECK(limit.flag == "--frame-bytes-max 16777216");
  CHECK(limit.bytes == (16u << 20) - (64u << 10));
}

TEST_CASE("a plan numbers closures, partitions variables and counts values with slots") {
  const auto built = BuildPlan(Spec(), Described());
  REQUIRE(built.ok());
  CHECK(built->plan.closures() == 6);           // ten steps per epoch, four steps per closure
  REQUIRE(built->message.shards_size() == 14);  // 12 partitions and 2 whole variables
  CHECK(built->message.shards(0).row_begin() == 0);
  CHECK(built->message.shards(0).row_end() == 66);
  CHECK(built->message.shards(11).row_end() == 784);
  CHECK(built->message.shards(12).variable().name() == "dense/bias");
  CHECK(built->message.shards(12).variable().index() == 1);
  CHECK(built->shard_bytes[0] == 66 * 256 * 4 * 3);
  CHECK(built->shard_bytes[12] == 256 * 4 * 3);
  CHECK(built->shard_bytes[13] == 4 * 3);  // a scalar and its two moments
  CHECK(built->message.fingerprint().size() == 64);
}

TEST_CASE(
    "the fingerprint depends on data, model and partitions, not on learning rate, epochs, "
    "evaluation, checkpoints, precision or pipeline") {
  const std::string base = BuildPlan(Spec(), Described())->message.fingerprint();
  CHECK(BuildPlan(Spec(), Described())->message.fingerprint() == base);
  config::JobSpec spec = Spec();
  spec.training.epochs = 9;
  spec.training.evaluate_every_epochs = 0;
  spec.training.on_lost_updates = "report";
  spec.training.on_over_budget = "pause";
  spec.training.precision = "mixed_bfloat16";
  spec.optimizer.learning_rate = 0.5;
  spec.name = "other";
  spec.checkpoint = {.on = true,
                     .given = true,
                     .every = std::chrono::seconds(5),
                     .keep = 7,
                     .resume = true,
                     .directory = "/shared"};
  spec.strategy.pipeline = 1;
  v1::DescribeResult d = Described();
  for (v1::VariableSpec& v : *d.mutable_variables()) v.mutable_optimizer()->set_learning_rate(0.5);
  d.set_eval_examples(77);
  CHECK(BuildPlan(spec, d)->message.fingerprint() == base);
  // The type in which one layer computes does not change the plan, and neither does the type in
  // which all layers compute.
  config::LayerSpec layer;
  layer.name = "logits", layer.type = "dense", layer.inputs = {"x"}, layer.units = 3;
  spec.model.layers = {layer};
  const std::string of_layer = BuildPlan(spec, d)->message.fingerprint();
  spec.model.layers[0].dtype = "float32";
  CHECK(BuildPlan(spec, d)->message.fingerprint() == of_layer);
  spec.model.layers.clear();
  // The job's share of the cluster must not change the plan.
  spec.resources = {.share = 3, .server_memory_bytes_max = 1ull << 40};
  CHECK(BuildPlan(spec, d)->message.fingerprint() == base);
  // The wire types of values must not change the plan.
  spec.training.wire = {{"dense/*", "bf16"}};
  for (v1::VariableSpec& v : *d.mutable_variables()) v.set_wire_dtype(v1::DTYPE_BFLOAT16);
  CHECK(BuildPlan(spec, d)->message.fingerprint() == base);
  // If the partitions stay the same, other settings of the partitioner must not change the plan.
  spec = Spec();
  spec.strategy.partitioner.min_shard_bytes -= 1;
  REQUIRE(BuildPlan(spec, Described())->message.shards_size() ==
          BuildPlan(Spec(), Described())->message.shards_size());
  CHECK(BuildPlan(spec, Described())->message.fingerprint() == base);

  spec = Spec();
  spec.data.batch_size = 50;
  CHECK(BuildPlan(spec, Described())->message.fingerprint() != base);
  spec = Spec();
  spec.data.shuffle_seed = 9;
  CHECK(BuildPlan(spec, Described())->message.fingerprint() != base);
  spec = Spec();
  spec.strategy.partitioner.min_shard_bytes = 128 * 1024;
  CHECK(BuildPlan(spec, Described())->message.fingerprint() != base);
  d = Described();
  d.set_data_fingerprint("changed");
  CHECK(BuildPlan(Spec(), d)->message.fingerprint() != base);
}

TEST_CASE("the fingerprint depends on the content of a table, not on its capacity") {
  const auto of = [](auto change) {
    config::JobSpec spec = Spec();
    spec.model.tables.push_back({.name = "users", .dimension = 8});
    v1::DescribeResult d = Described();
    v1::TableSpec& table = *d.add_tables();
    table.set_name("users");
    table.set_dtype(v1::DTYPE_FLOAT32);
    table.set_dimension(8);
    table.set_admit_after(1);
    table.mutable_optimizer()->set_type("adam");
    change(&spec.model.tables[0], &table);
    const auto built = BuildPlan(spec, d);
    REQUIRE(built.ok());
    return built->message.fingerprint();
  };
  const std::string base = of([](config::TableSpec*, v1::TableSpec*) {});
  CHECK(of([](config::TableSpec* spec, v1::TableSpec* table) {
          table->set_bytes_max(spec->bytes_max = 1 << 20);
        }) == base);
  CHECK(of([](config::TableSpec* spec, v1::TableSpec* table) {
          table->set_ttl_steps(spec->ttl_steps = 9);
        }) != base);
  CHECK(of([](config::TableSpec* spec, v1::TableSpec* table) {
          table->set_admit_after(spec->admit_after = 2);
        }) != base);
}

TEST_CASE(
    "the fingerprint of a counting job depends on what it counts, not on the last table's capacity "
    "or the length of a step") {
  const auto of = [](auto change) {
    config::JobSpec spec = Spec();
    spec.type = "counting";
    spec.counting.tables = 2;
    change(&spec.counting);
    const auto built = BuildPlan(spec, Described());
    REQUIRE(built.ok());
    return built->message.fingerprint();
  };
  const std::string base = of([](config::CountingSpec*) {});
  CHECK(of([](config::CountingSpec* counting) { counting->table_bytes_max = 1 << 20; }) == base);
  CHECK(of([](config::CountingSpec* counting) { counting->step_ms = 20; }) == base);
  CHECK(of([](config::CountingSpec* counting) { counting->table_ids = 7; }) != base);
}

// Later versions must be able to read the checkpoints and the journals of this version. A change
// that makes this test fail makes all existing checkpoints unusable. A new key or message field
// with a default must not make it fail. A changed default must make it fail.
TEST_CASE("the fingerprint of a job is the same in every version") {
  CHECK(BuildPlan(Spec(), Described())->message.fingerprint() ==
        "99f4a761fe082909addb6f0d55252701a62500c4af406d9035c98c34ff209e70");
}

TEST_CASE("an entry of wire_dtype that matches no variable is a user's error") {
  config::JobSpec spec = Spec();
  spec.training.wire = {{"dense/*", "bf16"}, {"emb/*", "fp16"}, {"", "bf16"}};
  const auto built = BuildPlan(spec, Described());
  REQUIRE_FALSE(built.ok());
  CHECK(BlameOf(built.status()) == Blame::kUser);
  CHECK_THAT(std::string(built.status().message()),
             Catch::Contains(
                 "spec.training.wire_dtype: no variable and no table of this name: match=emb/*"));
  spec.training.wire[1].match = "scale";
  CHECK(BuildPlan(spec, Described()).ok());
}

TEST_CASE("an entry of optimizers that matches no variable is a user's error") {
  config::JobSpec spec = Spec();
  spec.optimizers.assign(2, config::OptimizerRule{spec.optimizer, ""});
  spec.optimizers[0].match = "dnse/*";
  const auto built = BuildPlan(spec, Described());
  REQUIRE_FALSE(built.ok());
  CHECK(BlameOf(built.status()) == Blame::kUser);
  CHECK_THAT(std::string(built.status().message()),
             Catch::StartsWith("spec.optimizers: no variable and no table of this name: "
                               "match=dnse/*; the model has dense/kernel, "));
  spec.optimizers[0].match = "scale";
  CHECK(BuildPlan(spec, Described()).ok());
  // An entry of `optimizers` may match only tables. The last entry has the job's default optimizer,
  // and may match nothing.
  spec.optimizers[0].match = "emb/*";
  CHECK_FALSE(BuildPlan(spec, Described()).ok());
  v1::DescribeResult d = Described();
  v1::TableSpec* table = d.add_tables();
  table->set_name("emb/users");
  table->set_dimension(4);
  table->set_dtype(v1::DTYPE_FLOAT32);
  CHECK(BuildPlan(spec, d).ok());
  spec.optimizers[0].match = "*";
  CHECK(BuildPlan(spec, d).ok());
}

TEST_CASE(
    "the memory of tables is counted by their limits, and slots are placed as at least one MiB "
    "each") {
  const std::uint64_t dense = BuildPlan(Spec(), Described())->server_bytes;
  v1::DescribeResult d = Described();
  for (const std::uint64_t bytes_max : {0ull, 1ull << 20, 1ull << 30}) {
    v1::TableSpec* table = d.add_tables();
    table->set_name(absl::StrCat("t", d.tables_size()));
    table->set_dimension(4);
    table->set_dtype(v1::DTYPE_FLOAT32);
    table->set_bytes_max(bytes_max);
  }
  const auto built = BuildPlan(Spec(), d);
  REQUIRE(built.ok());
  CHECK(built->server_bytes == dense + (1ull << 20) + (1ull << 30));
  CHECK(built->shard_bytes.back() == ((1ull << 20) + (1ull << 30)) / Spec().strategy.table_slots);
  d.mutable_tables(2)->set_bytes_max(0);
  CHECK(BuildPlan(Spec(), d)->shard_bytes.back() == 1ull << 20);
  CHECK(BuildPlan(Spec(), d)->server_bytes == dense + (1ull << 20));
}

TEST_CASE("a worker's description is not trusted") {
  struct Row {
    const char* what;
    void (*change)(v1::DescribeResult*);
    const char* message;
    bool user;
  };
  for (const Row& row : std::vector<Row>{
           {"no examples", [](v1::DescribeResult* d) { d->set_train_examples(0); }, "", true},
           {"no variables", [](v1::DescribeResult* d) { d->clear_variables(); }, "no variables",
            false},
           {"a name twice",
            [](v1::DescribeResult* d) { d->mutable_variables(1)->set_name("dense/kernel"); },
            "duplicate variable name", false},
           {"no name", [](v1::DescribeResult* d) { d->mutable_variables(1)->set_name(""); },
            "a variable in the describe result has an empty", false},
           {"a dtype that is not built",
            [](v1::DescribeResult* d) { d->mutable_variables(1)->set_dtype(v1::DTYPE_FLOAT16); },
            "does not support the dtype", false},
           {"a wire type that is not built",
            [](v1::DescribeResult* d) { d->mutable_variables(1)->set_wire_dtype(v1::DTYPE_INT64); },
            "unsupported wire type", false},
           {"a shape that overflows",
            [](v1::DescribeResult* d) {
              for (int i = 0; i < 4; ++i) d->mutable_variables(1)->add_shape(1ull << 40);
            },
            "dense/bias", true},
           {"a rank above 8",
            [](v1::DescribeResult* d) {
              for (int i = 0; i < 8; ++i) d->mutable_variables(1)->add_shape(1);
            },
            "dense/bias", true},
       }) {
    CAPTURE(row.what);
    v1::DescribeResult d = Described();
    row.change(&d);
    const auto built = BuildPlan(Spec(), d);
    REQUIRE_FALSE(built.ok());
    CHECK_THAT(std::string(built.status().message()), Contains(row.message));
    CHECK((BlameOf(built.status()) == Blame::kUser) == row.user);
  }
}

TEST_CASE("more shards than a map can hold are refused by name") {
  config::JobSpec spec = Spec();
  spec.strategy.partitioner.min_shard_bytes = 1;
  v1::DescribeResult d = Described();
  d.mutable_variables(0)->set_shape(0, 20000);
  const auto built = BuildPlan(spec, d);
  REQUIRE_FALSE(built.ok());
  CHECK_THAT(std::string(built.status().message()),
             Contains("too many shards") && Contains("spec.strategy.partitioner"));
}

TEST_CASE("a counting job has as many shards as it asks for") {
  config::JobSpec spec = Spec();
  spec.type = "counting";
  spec.counting.shards = 8;
  v1::DescribeResult d;
  d.set_train_examples(600);
  v1::VariableSpec* v = d.add_variables();
  v->set_name("counting/samples");
  v->add_shape(600);
  v->add_shape(1);
  v->set_dtype(v1::DTYPE_FLOAT32);
  v->mutable_optimizer()->set_type("counting");
  const auto built = BuildPlan(spec, d);
  REQUIRE(built.ok());
  CHECK(built->message.shards_size() == 8);
  CHECK(built->shard_bytes[0] == 75 * 4 * 2);
}

TEST_CASE(
    "a description with too many evaluation closures is refused before any memory is allocated for "
    "them") {
  v1::DescribeResult described = Described();
  described.set_eval_examples(1ull << 40);
  const auto built = BuildPlan(Spec(), described);
  REQUIRE(!built.ok());
  CHECK(BlameOf(built.status()) == Blame::kUser);
  CHECK_THAT(std::string(built.status().message()), Contains("too many evaluation closures"));
}

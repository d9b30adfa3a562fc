// Tests how psctl renders the state of one variable: the rows that the coordinator sends become
// lines and rates.
#include <cmath>
#include <map>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/variable_view.h"

namespace evergrad::psctl {
namespace {

using Lines = std::vector<std::string>;

void AddShard(v1::VariableRow* row, std::uint32_t number, const char* server, std::uint64_t pulls,
              std::uint64_t pushes, std::uint64_t in, std::uint64_t out) {
  v1::ShardState* shard = row->add_shards();
  shard->set_shard(number);
  shard->set_pulls(pulls);
  shard->set_pushes(pushes);
  shard->set_bytes_received(in);
  shard->set_bytes_sent(out);
  shard->set_updates_applied(pushes);
  row->add_servers(server);
}

void AddHot(v1::VariableRow* row, std::int64_t id, std::uint64_t pushes, std::uint64_t error) {
  v1::HotId* hot = row->mutable_table()->add_hottest();
  hot->set_id(id);
  hot->set_pushes(pushes);
  hot->set_error(error);
}

v1::VariableRow Movies() {
  v1::VariableRow row;
  row.set_name("movies");
  row.set_dtype(v1::DTYPE_FLOAT32);
  row.set_complete(true);
  row.set_digest(0xab);
  row.set_slot_digest(0xcd);
  v1::TableSpec* spec = row.mutable_table_spec();
  spec->set_dimension(16);
  spec->mutable_initializer()->set_type("truncated_normal");
  spec->mutable_initializer()->set_stddev(0.05);
  spec->mutable_optimizer()->set_type("adagrad");
  spec->mutable_optimizer()->set_learning_rate(0.1);
  spec->mutable_optimizer()->set_initial_accumulator_value(0.5);
  spec->mutable_optimizer()->set_epsilon(0.25);
  spec->set_admit_after(2);
  spec->set_ttl_steps(1000);
  spec->set_bytes_max(1 << 20);
  spec->set_evict_lru(true);
  v1::TableState* table = row.mutable_table();
  table->set_rows(1000);
  table->set_waiting(20);
  table->set_bytes(64000);
  table->set_slot_bytes(64000);
  table->set_memory_bytes(150000);
  table->set_index_places(1500);
  table->set_admitted(1100);
  table->set_evicted_ttl(60);
  table->set_evicted_lru(40);
  table->set_gradients_dropped(21);
  table->set_duplicates(3);
  table->set_refused(2);
  AddShard(&row, 0, "0", 100, 50, 1000, 4000);
  AddShard(&row, 1, "1", 100, 50, 1000, 4000);
  AddShard(&row, 2, "0", 300, 150, 3000, 12000);
  AddHot(&row, -7, 1270, 0);
  AddHot(&row, 42, 254, 127);
  return row;
}

TEST_CASE(
    "the description of a table shows settings, memory, events of rows, traffic with skew, and hot "
    "ids with their error") {
  CHECK(
      VariableDescription(Movies(), "ratings", 2) ==
      Lines{
          "movies: embedding table of job ratings",
          "  rows         1000 of 16 x float32",
          "  initializer  truncated_normal, mean 0, stddev 0.05",
          "  optimizer    adagrad, learning_rate 0.1, initial_accumulator_value 0.5, epsilon 0.25",
          "  slots        3 on 2 servers",
          "  admission    with push 2 to an id; until then it reads 0, 20 ids wait",
          "  eviction     rows are evicted after 1000 steps without a push; rows and their index "
          "entries take at most 1.0 MiB, now 148.9 KiB; at the limit, the rows that have gone "
          "longest without a push are evicted",
          "  memory       146.5 KiB = values 62.5 KiB + optimizer 62.5 KiB + index, counters and "
          "free space 21.5 KiB",
          "               150.0 bytes per row, 22.0 of them index, counters and free space",
          "  index load   0.68 of 1500 entries",
          "  admitted     1100 rows",
          "  evicted      60 rows by age, 40 for capacity",
          "  dropped      21 gradients of ids that were not admitted yet",
          "  duplicates   3 gradients of ids that one push named more than once, summed",
          "  refused      2 pushes over the memory limit",
          "  updates      at most 150 applied in one shard; 0 repeated pushes refused",
          "  digest       00000000000000ab, optimizer 00000000000000cd",
          "",
          "traffic since the servers got the shards; the traffic of a slot is the sum over all its "
          "tables",
          "",
          "server       shards  pulls  pushes       in       out  of all",
          "ps_server/0       2    400     200  3.9 KiB  15.6 KiB    80 %",
          "ps_server/1       1    100      50   1000 B   3.9 KiB    20 %",
          "",
          "busiest shards  server       pulls  pushes       in       out",
          "             2  ps_server/0    300     150  2.9 KiB  11.7 KiB",
          "             0  ps_server/0    100      50   1000 B   3.9 KiB",
          "",
          "largest / median: of shards pulls 3.00, pushes 3.00, bytes 3.00; of servers pulls 1.60, "
          "pushes 1.60, bytes 1.60",
          "",
          "hottest ids  pushes, about  error at most",
          "         -7           1270              0",
          "         42            254            127"});
}

TEST_CASE("the description of a dense variable shows its shape and partitions, and no ids") {
  v1::VariableRow row;
  row.set_name("dense/kernel");
  row.set_dtype(v1::DTYPE_FLOAT32);
  row.add_shape(784);
  row.add_shape(10);
  row.set_bytes(31360);
  row.mutable_variable_spec()->mutable_optimizer()->set_type("sgd");
  row.mutable_variable_spec()->mutable_optimizer()->set_learning_rate(0.01);
  row.mutable_variable_spec()->mutable_initializer()->set_type("glorot_uniform");
  row.mutable_variable_spec()->set_wire_dtype(v1::DTYPE_BFLOAT16);
  AddShard(&row, 0, "0", 0, 0, 0, 0);
  const Lines lines = VariableDescription(row, "mnist", 10);
  CHECK(lines[0] == "dense/kernel: dense variable of job mnist");
  CHECK(lines[1] == "  shape        [784, 10] x float32, on the wire bf16");
  CHECK(lines[3] == "  optimizer    sgd, learning_rate 0.01, momentum 0");
  CHECK(lines[4] == "  partitions   1 on 1 server");
  CHECK(lines[5] == "  bytes        values 30.6 KiB, optimizer 0 B");
  CHECK(lines[7] == "  digest       (not every shard answered)");
  CHECK(lines.back() ==
        "largest / median: of shards pulls -, pushes -, bytes -; of servers pulls -, pushes -, "
        "bytes -");
}

TEST_CASE(
    "rates count only the growth between two samples, and a moved or restarted shard counts from "
    "zero") {
  const v1::VariableRow before = Movies();
  v1::VariableRow now = Movies();
  now.mutable_shards(0)->set_pulls(140);
  now.mutable_shards(0)->set_pushes(60);
  now.mutable_shards(0)->set_bytes_received(1400);
  now.set_servers(1, "0");  // another server got this shard, and has answered 100 pulls
  now.mutable_shards(2)->set_pulls(20);  // the server of this shard was restarted
  now.mutable_shards(2)->set_pushes(10);
  now.mutable_shards(2)->set_bytes_received(200);
  now.mutable_shards(2)->set_bytes_sent(800);
  now.mutable_table()->mutable_hottest(0)->set_pushes(1524);
  now.mutable_table()->mutable_hottest(1)->set_id(43);
  const VariableView view = ViewOf(now, before, 2);
  std::map<std::uint32_t, double> pulls, in;
  for (const ShardFlow& shard : view.shards)
    pulls[shard.shard] = shard.flow.pulls, in[shard.shard] = shard.flow.bytes_in;
  CHECK(pulls == std::map<std::uint32_t, double>{{0, 20}, {1, 50}, {2, 10}});
  CHECK(in == std::map<std::uint32_t, double>{{0, 200}, {1, 500}, {2, 100}});
  REQUIRE(view.servers.size() == 1);
  CHECK(view.servers[0].flow.pulls == 80);
  CHECK(view.shard_skew.pulls == 2.5);
  CHECK(view.hottest[0].pushes_per_second == 127);
  CHECK(std::isnan(view.hottest[1].pushes_per_second));
  const Lines lines = VariableTop(now, view, "ratings", 1);
  CHECK(lines[0] ==
        "movies of job ratings, 1000 rows, 146.5 KiB, over the last 2.0 s (the traffic of a slot "
        "is the sum over all its tables)");
  CHECK(lines[1] == "pulls/s 80  pushes/s 35  in/s 800 B  out/s 2.3 KiB");
  CHECK(lines[3] == "server       shards  pulls/s  pushes/s   in/s    out/s  of all");
  CHECK(lines[6] == "busiest shards  server       pulls/s  pushes/s   in/s    out/s");
  CHECK(lines.back() == "         -7           1524              0              127");

  // The rates of a shard are unknown if the previous sample lacks the shard.
  v1::VariableRow partial = Movies();
  partial.set_complete(false);
  partial.mutable_shards()->DeleteSubrange(0, 1);
  partial.mutable_servers()->DeleteSubrange(0, 1);
  for (const ShardFlow& shard : ViewOf(Movies(), partial, 1).shards) CHECK(shard.flow.pulls == 0);
}

TEST_CASE("the JSON of a table has all values of the description") {
  const nlohmann::json row = JsonOf(Movies());
  CHECK(row["optimizer"] == nlohmann::json({{"type", "adagrad"},
                                            {"learning_rate", 0.1},
                                            {"initial_accumulator_value", 0.5},
                                            {"epsilon", 0.25}}));
  CHECK(row["table"]["memory_bytes"] == 150000);
  CHECK(row["table"]["evicted_lru"] == 40);
  CHECK(row["table"]["hottest"][1] ==
        nlohmann::json({{"id", 42}, {"pushes", 254}, {"error", 127}}));
  CHECK(row["shards"][2]["bytes_out"] == 12000);
  const nlohmann::json view = JsonOf(ViewOf(Movies()), 1);
  CHECK(view["seconds"].is_null());
  CHECK(view["busiest_shards"].size() == 1);
  CHECK(view["busiest_shards"][0]["shard"] == 2);
  CHECK(view["server_skew"]["pulls"] == 1.6);
  CHECK(view["hottest"][0]["pushes_per_second"].is_null());
}

TEST_CASE("an optimizer is shown with its parameters, epsilon last") {
  const auto names = [](const char* type) {
    std::vector<std::string> shown;
    for (const optimizers::Member& member : ShownMembers(type)) shown.emplace_back(member.name);
    return shown;
  };
  CHECK(names("sgd") == Lines{"learning_rate", "momentum", "nesterov"});
  CHECK(names("rmsprop") == Lines{"learning_rate", "momentum", "rho", "epsilon"});
  CHECK(names("adamw") == Lines{"learning_rate", "beta_1", "beta_2", "weight_decay", "epsilon"});
  CHECK(names("ftrl") == Lines{"learning_rate", "initial_accumulator_value", "learning_rate_power",
                               "l1_regularization_strength", "l2_regularization_strength", "beta"});
  CHECK(names("moving_average") == Lines{"momentum"});
  CHECK(names("counting").empty());
  CHECK(names("of a newer program") == Lines{"learning_rate"});
  v1::VariableRow row;
  row.mutable_variable_spec()->mutable_optimizer()->set_type("sgd");
  row.mutable_variable_spec()->mutable_optimizer()->set_momentum(0.5);
  row.mutable_variable_spec()->mutable_optimizer()->set_nesterov(true);
  CHECK(VariableDescription(row, "mnist", 10)[3] ==
        "  optimizer    sgd, learning_rate 0, momentum 0.5, nesterov");
}

}  // namespace
}  // namespace evergrad::psctl

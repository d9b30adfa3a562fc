// Tests the states of the sections of an exchange (the pushes and pulls of a step), and the
// requests into which they are divided.
#include "worker/runner/exchange_sections.h"

#include <catch2/catch.hpp>

#include "evergrad/v1/session.pb.h"
#include "worker/runner/exchange_errors.h"
#include "worker/runner/request_writer.h"

namespace evergrad::worker {
namespace {

using PushKey = ExchangeSections::PushKey;
using PullKey = ExchangeSections::PullKey;
using Retry = ExchangeSections::Retry;

// The plan has two dense shards of one variable, and then four slots of one table of dimension 2.
std::shared_ptr<const Layout> MakeLayout() {
  v1::Plan plan;
  for (std::uint32_t i = 0; i < 6; ++i) {
    v1::ShardSpec* shard = plan.add_shards();
    shard->set_shard(i);
    if (i >= 2) {
      shard->mutable_slot()->set_slot(i - 2);
      shard->mutable_slot()->set_slots(4);
      continue;
    }
    shard->mutable_variable()->set_name("dense/kernel");
    shard->mutable_variable()->add_shape(4);
    shard->mutable_variable()->set_dtype(v1::DTYPE_FLOAT32);
    shard->set_row_begin(2 * i);
    shard->set_row_end(2 * i + 2);
  }
  v1::TableSpec* table = plan.add_tables();
  table->set_name("table");
  table->set_dtype(v1::DTYPE_FLOAT32);
  table->set_dimension(2);
  auto layout = Layout::FromPlan(plan);
  REQUIRE(layout.ok());
  return std::make_shared<const Layout>(*std::move(layout));
}

struct Fixture {
  // The shards 0, 2 and 4 are on server a, and the others are on server b.
  Fixture() {
    map.version = MapVersion(1, 5);
    for (std::uint32_t shard = 0; shard < 6; ++shard)
      map.shards.push_back({ShardEpoch(1, 1), {}, shard % 2 == 0 ? "a" : "b"});
  }
  std::map<std::string, ExchangeSections::Group> Ready() {
    return sections.ReadyByOwner(map, endpoints);
  }
  void Push(std::uint32_t update, std::uint32_t shard, std::string skip_reason = "") {
    sections.AddPush(UpdateIndex(update), {{ShardId(shard), {}}, 7, std::move(skip_reason)});
  }

  const std::shared_ptr<const Layout> layout = MakeLayout();
  ExchangeSections sections{layout};
  ShardMap map;
  ExchangeSections::Endpoints endpoints{{"a", {}}, {"b", {}}};
};

TEST_CASE("a dense pull is sent once for each time that it is wanted, and counts when accepted") {
  Fixture f;
  CHECK(f.Ready().empty());
  f.sections.WantPulls(1);
  f.sections.WantPulls(0);
  auto ready = f.Ready();
  REQUIRE(ready.size() == 2);
  CHECK(ready["a"].pulls == std::vector<PullKey>{{0, 0}});
  CHECK(ready["b"].pulls == std::vector<PullKey>{{0, 1}});
  for (const PullKey key : {PullKey{0, 0}, PullKey{0, 1}}) {
    const std::uint64_t serial = f.sections.Sent(key, f.map);
    CHECK_FALSE(f.sections.PullsDone(1));
    CHECK(f.sections.IsCurrent(key, serial));
    f.sections.MakeReady(key);
    CHECK_FALSE(f.sections.IsCurrent(key, serial));
    f.sections.AcceptDense(key, 1);
  }
  CHECK(f.sections.PullsDone(1));
  CHECK(f.Ready().empty());
  f.sections.HavePulls(3);
  CHECK(f.sections.PullsDone(3));
  CHECK(f.Ready().empty());
}

TEST_CASE("a pull waits while its shard has a push that is not sent, and travels with that push") {
  Fixture f;
  f.Push(0, 0);
  CHECK(f.sections.AnyPushReady());
  Retry retry;
  f.sections.Sent(PushKey{0, 0}, f.map);
  CHECK_FALSE(f.sections.AnyPushReady());
  f.sections.BackOff(PushKey{0, 0}, &retry);
  f.sections.WantPulls(1);
  CHECK(f.Ready().count("a") == 0);
  CHECK(f.sections.IsRetry(PushKey{0, 0}));
  f.sections.Resume(retry);
  auto ready = f.Ready();
  CHECK(ready["a"].pushes == std::vector<PushKey>{{0, 0}});
  CHECK(ready["a"].pulls == std::vector<PullKey>{{0, 0}});
  f.sections.Settle(PushKey{0, 0});
  CHECK_FALSE(f.sections.HasPush({0, 0}));
}

TEST_CASE("retries count earlier tries, and a late timer has no effect") {
  Fixture f;
  f.Push(0, 0);
  Retry first, second;
  f.sections.BackOff(PushKey{0, 0}, &first);
  CHECK(first.tries == 0);
  f.sections.BackOff(PushKey{0, 0}, &second);
  CHECK(second.tries == 1);
  f.sections.Resume(first);
  CHECK_FALSE(f.sections.AnyPushReady());
  CHECK(second.Delay(std::chrono::milliseconds(10), std::chrono::seconds(1)).count() == 20);
  second.tries = 40;
  CHECK(second.Delay(std::chrono::milliseconds(10), std::chrono::seconds(1)).count() == 1000);
  second.busy_after_ms = 3000;
  CHECK(second.Delay(std::chrono::milliseconds(10), std::chrono::seconds(1)).count() == 3000);
  f.sections.Resume(second);
  CHECK(f.sections.AnyPushReady());
}

TEST_CASE("a section waits for a newer map, and backs off if the held map is as new") {
  Fixture f;
  f.Push(0, 0);
  f.Push(0, 1);
  Retry retry;
  f.sections.Sent(PushKey{0, 0}, f.map);
  f.sections.WaitOrBackOff(PushKey{0, 0}, MapVersion(1, 7), f.map.version, &retry);
  CHECK(f.sections.WaitsForMap());
  CHECK(retry.empty());
  f.sections.WaitOrBackOff(PushKey{0, 1}, MapVersion(1, 5), f.map.version, &retry);
  CHECK(retry.pushes.size() == 1);
  f.map.version = MapVersion(1, 6);
  f.sections.OnMap(f.map, f.endpoints);
  CHECK(f.sections.WaitsForMap());
  f.map.version = MapVersion(1, 7);
  f.sections.OnMap(f.map, f.endpoints);
  CHECK_FALSE(f.sections.WaitsForMap());
  CHECK(f.Ready()["a"].pushes.size() == 1);
}

TEST_CASE("a shard without an owner waits for a map or for the owner's endpoint") {
  Fixture f;
  f.Push(0, 0);
  f.endpoints.erase("a");
  CHECK(f.Ready().empty());
  CHECK(f.sections.WaitsForMap());
  f.sections.OnMap(f.map, f.endpoints);
  CHECK(f.sections.WaitsForMap());
  f.endpoints["a"];
  f.sections.OnMap(f.map, f.endpoints);
  CHECK_FALSE(f.sections.WaitsForMap());
  CHECK(f.Ready().count("a") == 1);
}

TEST_CASE("a push in flight to a former owner is sent to the new one, and the old answer is late") {
  Fixture f;
  f.Push(0, 0);
  f.Push(0, 2);
  const std::uint64_t moved = f.sections.Sent(PushKey{0, 0}, f.map);
  const std::uint64_t stays = f.sections.Sent(PushKey{0, 2}, f.map);
  f.map.shards[0] = {ShardEpoch(1, 2), {}, "b"};
  f.sections.OnMap(f.map, f.endpoints);
  CHECK_FALSE(f.sections.IsCurrent(PushKey{0, 0}, moved));
  CHECK(f.sections.IsCurrent(PushKey{0, 2}, stays));
  auto ready = f.Ready();
  CHECK(ready.size() == 1);
  CHECK(ready["b"].pushes == std::vector<PushKey>{{0, 0}});
}

TEST_CASE("rows are pulled after their dense pull, one section per part, until they have arrived") {
  Fixture f;
  const std::vector<std::int64_t> ids = {1, 2, 3, 4, 5};
  const auto rows = std::make_shared<const SlotRows>(f.layout, std::vector{std::span(ids)});
  f.sections.WantRows(1, rows, /*after=*/2);
  f.sections.HavePulls(1);
  CHECK(f.Ready().empty());
  f.sections.HavePulls(2);
  std::size_t parts = 0;
  for (const auto& [server, group] : f.Ready()) parts += group.pulls.size();
  CHECK(parts == rows->parts().size());
  for (const SlotRows::OfShard& part : rows->parts()) {
    const PullKey key{1, part.shard.value()};
    CHECK(f.sections.rows(key).rows == rows);
    CHECK(f.sections.rows(key).part == &part);
    const std::uint64_t serial = f.sections.Sent(key, f.map);
    CHECK(f.sections.IsCurrent(key, serial));
    f.sections.Settle(key);
    CHECK_FALSE(f.sections.IsCurrent(key, serial));
  }
  CHECK(f.Ready().empty());
  CHECK(f.sections.rows(PullKey{0, 0}).part == nullptr);
}

TEST_CASE("a push over budget names its reason until it is answered otherwise") {
  Fixture f;
  f.Push(0, 1);
  CHECK(f.sections.OverBudget().empty());
  f.sections.SetOverBudget({0, 1}, "full");
  CHECK(f.sections.OverBudget() == "full");
  f.sections.SetOverBudget({0, 1}, "");
  CHECK(f.sections.OverBudget().empty());
}

TEST_CASE("a request has a header with the grant's proof only if it pushes, and ids only of rows") {
  Fixture f;
  PullCache cache(f.layout);
  const RequestWriter writer({JobUid(3), {}, ClosureId(4), Attempt(1, 2), "proof", "worker/w"},
                             f.layout, &cache);
  f.sections.WantPulls(1);
  RequestWriter::Written written = writer.Write(f.sections, {{}, {{0, 1}}}, f.map);
  CHECK(written.header->grants_size() == 0);
  CHECK(written.header->client_name() == "worker/w");
  CHECK(written.payloads.empty());
  CHECK(written.ids.empty());
  REQUIRE(written.header->pulls_size() == 1);
  CHECK_FALSE(written.header->pulls(0).has());

  const std::vector<std::int64_t> ids = {1, 2};
  const auto rows = std::make_shared<const SlotRows>(f.layout, std::vector{std::span(ids)});
  f.sections.WantRows(1, rows, 0);
  f.Push(0, 0);
  f.Push(0, 2, "nan");
  const PullKey part{1, rows->parts()[0].shard.value()};
  written = writer.Write(f.sections, {{{0, 0}, {0, 2}}, {part}}, f.map);
  REQUIRE(written.header->grants_size() == 1);
  CHECK(written.header->grants(0).mac() == "proof");
  CHECK(written.payloads.size() == 2);
  CHECK(written.ids.size() == 3);
  CHECK(written.header->pushes(0).kind() == v1::GRADIENT);
  CHECK(written.header->pushes(0).rows() == 2);
  CHECK(written.header->pushes(0).global_step() == 7);
  CHECK(written.header->pushes(1).kind() == v1::SKIP);
  CHECK(written.header->pushes(1).skip_reason() == "nan");
  CHECK(written.header->pushes(1).rows() == 0);
  CHECK(written.header->pulls(0).table_rows_size() == 1);
}

TEST_CASE("errors name rows of variables, slots of tables, and the server") {
  const auto layout = MakeLayout();
  CHECK(SectionName(*layout, ShardId(1)) == "rows 2 to 4 of variable dense/kernel");
  CHECK(SectionName(*layout, ShardId(3)) == "the rows that one batch reads in slot 1 of table");
  v1::PushResult over;
  over.set_answer(v1::OVER_BUDGET);
  CHECK(absl::IsResourceExhausted(PushError("a", ClosureId(1), 2, ShardId(0), over)));
  v1::PullResult values;
  values.set_answer(v1::VALUES);
  values.set_dtype(v1::DTYPE_FLOAT32);
  CHECK(CheckPullAnswer(values, ShardId(0), v1::DTYPE_FLOAT32).ok());
  CHECK(absl::IsInternal(CheckPullAnswer(values, ShardId(0), v1::DTYPE_FLOAT16)));
}

}  // namespace
}  // namespace evergrad::worker

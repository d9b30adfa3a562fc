#include "worker/params/slot_rows.h"

#include <algorithm>
#include <functional>
#include <random>
#include <set>

#include <catch2/catch.hpp>

#include "common/sharding/slots.h"
#include "common/tensor/convert.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::worker {
namespace {

// Returns a plan with one dense variable in two shards, and then `slots` slots. `dimensions` has
// the dimension of each table.
v1::Plan PlanOf(const std::vector<std::uint32_t>& dimensions, std::uint32_t slots) {
  v1::Plan plan;
  for (std::uint32_t i = 0; i < 2; ++i) {
    v1::ShardSpec* shard = plan.add_shards();
    shard->set_shard(i);
    shard->mutable_variable()->set_name("dense/kernel");
    shard->mutable_variable()->add_shape(4);
    shard->mutable_variable()->set_dtype(v1::DTYPE_FLOAT32);
    shard->set_row_begin(2 * i);
    shard->set_row_end(2 * i + 2);
  }
  for (std::uint32_t t = 0; t < dimensions.size(); ++t) {
    v1::TableSpec* table = plan.add_tables();
    table->set_name("table_" + std::to_string(t));
    table->set_index(t);
    table->set_dtype(v1::DTYPE_FLOAT32);
    table->set_dimension(dimensions[t]);
  }
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    v1::ShardSpec* shard = plan.add_shards();
    shard->set_shard(2 + slot);
    shard->mutable_slot()->set_slot(slot);
    shard->mutable_slot()->set_slots(slots);
  }
  return plan;
}

std::shared_ptr<const Layout> LaidOut(const v1::Plan& plan) {
  auto layout = Layout::FromPlan(plan);
  REQUIRE(layout.ok());
  return std::make_shared<const Layout>(*std::move(layout));
}

TEST_CASE(
    "the slots of a plan with tables are its last shards, and dense variables are unaffected") {
  const auto layout = LaidOut(PlanOf({4, 1}, 8));
  CHECK(layout->shard_count() == 10);
  CHECK(layout->dense_shards() == 2);
  CHECK(layout->slots() == 8);
  CHECK_FALSE(layout->is_slot(ShardId(1)));
  CHECK(layout->is_slot(ShardId(2)));
  CHECK(layout->slot_shard(7) == ShardId(9));
  CHECK(layout->variables().size() == 1);
  CHECK(layout->slice(ShardId(5)).elements == 0);
  REQUIRE(layout->tables().size() == 2);
  CHECK(layout->tables()[0].dimension == 4);
  CHECK(layout->tables()[0].slot_key == sharding::SlotKey("table_0"));

  const auto refused = [](const char* text, const std::function<void(v1::Plan*)>& spoil) {
    v1::Plan plan = PlanOf({4, 1}, 8);
    spoil(&plan);
    const auto bad = Layout::FromPlan(plan);
    CHECK_THAT(std::string(bad.status().message()), Catch::Contains(text));
  };
  refused("slots and tables do not match", [](v1::Plan* p) { p->clear_tables(); });
  refused("slots and tables do not match",
          [](v1::Plan* p) { p->mutable_shards()->DeleteSubrange(2, 8); });
  refused("slots are not the last shards",
          [](v1::Plan* p) { p->mutable_shards()->SwapElements(1, 5); });
  refused("slots are not the last shards",
          [](v1::Plan* p) { p->mutable_shards(4)->mutable_slot()->set_slot(7); });
  refused("slots are not the last shards", [](v1::Plan* p) { p->mutable_shards()->RemoveLast(); });
  refused("table description is invalid",
          [](v1::Plan* p) { p->mutable_tables(1)->set_dimension(0); });
}

TEST_CASE(
    "each id is in its slot once, and its row and gradient find their positions, in each table's "
    "wire type") {
  using tensor::WireType;
  const std::uint32_t seed = GENERATE(1u, 2u, 3u);
  const std::vector<WireType> wire =
      GENERATE(std::vector<WireType>{WireType::kFloat32, WireType::kFloat32, WireType::kFloat32},
               std::vector<WireType>{WireType::kBFloat16, WireType::kBFloat16, WireType::kBFloat16},
               std::vector<WireType>{WireType::kFloat16, WireType::kFloat32, WireType::kBFloat16});
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const std::vector<std::uint32_t> dimensions = {4, 1, 7};
  v1::Plan plan = PlanOf(dimensions, 16);
  for (int t = 0; t < 3; ++t)
    plan.mutable_tables(t)->set_wire_dtype(
        static_cast<v1::DType>(wire[static_cast<std::size_t>(t)]));
  const auto layout = LaidOut(plan);
  std::vector<std::vector<std::int64_t>> ids(3);
  for (const std::size_t t : {0u, 2u}) {  // a batch may read no row of a table
    std::set<std::int64_t> all;
    while (all.size() < 60 * (t + 1))
      all.insert(static_cast<std::int64_t>(random()) * (random() % 2 == 0 ? 1 : -1));
    ids[t].assign(all.begin(), all.end());
    std::shuffle(ids[t].begin(), ids[t].end(), random);
  }
  const auto rows = std::make_shared<const SlotRows>(
      layout, std::vector<std::span<const std::int64_t>>{ids[0], ids[1], ids[2]});

  // Returns the value of each element of the row of `id` in the server's table `table`.
  const auto element = [](std::uint32_t table, std::int64_t id) {
    return static_cast<float>(id % 60 * 4 + table);
  };  // the numbers are exact in all types
  // If the allocator returns nothing, the rows are allocated on the heap.
  const std::vector<tensor::AlignedBuffer> without =
      rows->MakeRows([](std::size_t) { return tensor::AlignedBuffer(); });
  std::vector<tensor::AlignedBuffer> got = rows->MakeRows();
  for (std::size_t t = 0; t < got.size(); ++t) CHECK(without[t].size() == got[t].size());
  std::set<std::pair<std::uint32_t, std::int64_t>> seen;
  std::uint32_t last_shard = 0;
  for (const SlotRows::OfShard& part : rows->parts()) {
    CHECK(part.shard.value() > last_shard);
    last_shard = part.shard.value();
    const tensor::SharedBytes bytes = SlotRows::Ids(rows, part);
    REQUIRE(bytes.bytes.size() == part.rows * 8);
    const auto* id = reinterpret_cast<const std::int64_t*>(bytes.bytes.data());
    std::vector<std::byte> values;
    std::set<WireType> types;
    std::int64_t last_table = -1;
    for (std::size_t k = 0; k < part.tables; ++k) {
      const std::uint32_t table = rows->tables(part)[k];
      CHECK(table > last_table);
      last_table = table;
      for (std::uint32_t i = 0; i < rows->table_rows(part)[k]; ++i, ++id) {
        CHECK(layout->slot_shard(sharding::SlotOf(layout->tables()[table].slot_key, *id, 16)) ==
              part.shard);
        CHECK(seen.insert({table, *id}).second);
        const std::vector<float> row(dimensions[table], element(table, *id));
        values.resize(values.size() + row.size() * tensor::WireBytes(wire[table]));
        tensor::Narrow(wire[table], row.data(), row.size(),
                       &values.back() + 1 - row.size() * tensor::WireBytes(wire[table]));
        types.insert(wire[table]);
      }
    }
    CHECK(values.size() == part.bytes);
    CHECK(part.wire == (types.size() == 1 ? *types.begin() : WireType::kSeveral));
    CHECK(rows->Scatter(part, values, &got));
    values.pop_back();
    CHECK_FALSE(rows->Scatter(part, values, &got));
  }
  rows->Widen(&got);
  CHECK(seen.size() == 60 + 180);
  for (std::uint32_t t = 0; t < 3; ++t) {
    REQUIRE(got[t].size() == ids[t].size() * dimensions[t] * sizeof(float));
    for (std::size_t i = 0; i < ids[t].size(); ++i)
      for (std::uint32_t d = 0; d < dimensions[t]; ++d)
        REQUIRE(got[t].floats()[i * dimensions[t] + d] == element(t, ids[t][i]));
  }
  // The rows must be sent in the order of the ids that are sent with them.
  CHECK(rows->ToWire(&got) == -1);
  const tensor::AlignedBuffer out = rows->Gather(got);
  CHECK(out.size() == rows->wire_bytes());
  got = rows->MakeRows();
  for (const SlotRows::OfShard& part : rows->parts())
    CHECK(rows->Scatter(part, {out.data() + part.first_byte, part.bytes}, &got));
  rows->Widen(&got);
  for (std::uint32_t t = 0; t < 3; ++t)
    for (std::size_t i = 0; i < ids[t].size(); ++i)
      CHECK(got[t].floats()[i * dimensions[t]] == element(t, ids[t][i]));
  got[0].floats()[5] = 70000.f;
  CHECK(rows->ToWire(&got) == (wire[0] == WireType::kFloat16 ? 0 : -1));
}

}  // namespace
}  // namespace evergrad::worker

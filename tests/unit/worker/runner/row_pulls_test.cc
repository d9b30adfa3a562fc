// Tests the memory for pulled rows of embedding tables.
#include "worker/runner/row_pulls.h"

#include <catch2/catch.hpp>

#include "evergrad/v1/session.pb.h"

namespace evergrad::worker {
namespace {

// Returns the rows of a batch. They are in two slots of one table of dimension 2.
std::shared_ptr<const SlotRows> MakeRows(const std::vector<std::int64_t>& ids) {
  v1::Plan plan;
  for (std::uint32_t i = 0; i < 2; ++i) {
    v1::ShardSpec* shard = plan.add_shards();
    shard->set_shard(i);
    shard->mutable_slot()->set_slot(i);
    shard->mutable_slot()->set_slots(2);
  }
  v1::TableSpec* table = plan.add_tables();
  table->set_name("table");
  table->set_dtype(v1::DTYPE_FLOAT32);
  table->set_dimension(2);
  auto layout = Layout::FromPlan(plan);
  REQUIRE(layout.ok());
  return std::make_shared<const SlotRows>(std::make_shared<const Layout>(*std::move(layout)),
                                          std::vector{std::span(ids)});
}

// Returns the values of a part, in which each element is `value`.
std::vector<std::byte> Values(const SlotRows::OfShard& part, float value) {
  const std::vector<float> floats(part.bytes / sizeof(float), value);
  const auto bytes = std::as_bytes(std::span(floats));
  return {bytes.begin(), bytes.end()};
}

TEST_CASE("the rows of a pull are taken once all of its parts have arrived") {
  const auto rows = MakeRows({1, 2, 3, 4, 5, 6, 7, 8});
  REQUIRE(rows->parts().size() == 2);
  RowPulls pulls;
  CHECK_FALSE(pulls.IsDone(1));
  pulls.Begin(1, rows, rows->MakeRows());
  for (const SlotRows::OfShard& part : rows->parts()) {
    CHECK_FALSE(pulls.IsDone(1));
    REQUIRE(pulls.Accept(1, part, Values(part, 1.5f)).ok());
  }
  REQUIRE(pulls.IsDone(1));
  const auto taken = pulls.Take(1, /*widen=*/true);
  REQUIRE(taken.size() == 1);
  const std::span<const float> values = taken[0].floats().first(16);
  CHECK(std::vector(values.begin(), values.end()) == std::vector<float>(16, 1.5f));
  CHECK_FALSE(pulls.IsDone(1));
}

TEST_CASE("values of another size are refused, and the part is still missing") {
  const auto rows = MakeRows({1});
  const SlotRows::OfShard& part = rows->parts().front();
  RowPulls pulls;
  pulls.Begin(1, rows, rows->MakeRows());
  const absl::Status refused = pulls.Accept(1, part, {});
  CHECK(absl::IsInternal(refused));
  CHECK(refused.message().find("want=8 got=0") != absl::string_view::npos);
  CHECK_FALSE(pulls.IsDone(1));
  CHECK(pulls.Accept(1, part, Values(part, 0)).ok());
  CHECK(pulls.IsDone(1));
}

TEST_CASE("pulls are independent, and a pull without rows is done at once") {
  const auto rows = MakeRows({1});
  RowPulls pulls;
  pulls.Begin(1, rows, rows->MakeRows());
  const auto none = MakeRows({});
  pulls.Begin(2, none, none->MakeRows());
  CHECK_FALSE(pulls.IsDone(1));
  REQUIRE(pulls.IsDone(2));
  CHECK(pulls.Take(2, /*widen=*/false).size() == 1);
  CHECK_FALSE(pulls.IsDone(1));
}

}  // namespace
}  // namespace evergrad::worker

// Tests the values of counting jobs without a runner.
#include "worker/counting/counting.h"

#include <catch2/catch.hpp>

namespace evergrad::worker {
namespace {

// Shard 0 has the rows 0 to 3 of the samples, and shard 1 the rows 4 to 7. The shards 2 and 3 count
// the updates.
Layout SmallLayout(const std::string& updates = kCountingUpdates) {
  v1::Plan plan;
  const auto add = [&](std::uint32_t index, const std::string& name, std::uint64_t rows,
                       std::uint64_t begin, std::uint64_t end) {
    v1::ShardSpec& spec = *plan.add_shards();
    spec.set_shard(static_cast<std::uint32_t>(plan.shards_size() - 1));
    spec.set_row_begin(begin);
    spec.set_row_end(end);
    spec.mutable_variable()->set_index(index);
    spec.mutable_variable()->set_name(name);
    spec.mutable_variable()->set_dtype(v1::DTYPE_FLOAT32);
    spec.mutable_variable()->add_shape(rows);
    spec.mutable_variable()->add_shape(1);
  };
  add(0, kCountingSamples, 8, 0, 4);
  add(0, kCountingSamples, 8, 4, 8);
  add(1, updates, 2, 0, 1);
  add(1, updates, 2, 1, 2);
  return *Layout::FromPlan(plan);
}

std::vector<ShardId> Shards(std::initializer_list<std::uint32_t> numbers) {
  std::vector<ShardId> shards;
  for (const std::uint32_t number : numbers) shards.emplace_back(number);
  return shards;
}

TEST_CASE("an update touches the shards with its samples and all shards that count updates") {
  const Layout layout = SmallLayout();
  CHECK(*CountingTouch(layout, {3}) == Shards({0, 2, 3}));
  CHECK(*CountingTouch(layout, {4, 5}) == Shards({1, 2, 3}));
  CHECK(*CountingTouch(layout, {0, 7}) == Shards({0, 1, 2, 3}));
  CHECK(*CountingTouch(layout, {}) == Shards({2, 3}));
  CHECK(CountingTouch(layout, {8}).status().message() == "example without a row: rows=8 got=8");
  CHECK(CountingTouch(SmallLayout("other"), {}).status().message() ==
        "the plan of a counting job lacks its variables");
}

TEST_CASE("an update adds 1 to the row of each sample and to every count of updates") {
  const CountedStep step =
      CountStepOf(std::make_shared<const Layout>(SmallLayout()), {1, 6, 6}, 0, 0, 500);
  const std::span<const float> samples = step.gradients->variable(0),
                               updates = step.gradients->variable(1);
  CHECK(std::vector<float>(samples.begin(), samples.end()) ==
        std::vector<float>{0, 1, 0, 0, 0, 0, 2, 0});
  CHECK(std::vector<float>(updates.begin(), updates.end()) == std::vector<float>{1, 1});
  CHECK(step.slots == nullptr);
}

TEST_CASE("an evaluation adds the counts of its rows") {
  const Layout layout = SmallLayout();
  const std::vector<float> samples = {1, 2, 3, 4, 5, 6, 7, 8}, updates = {0, 0};
  CHECK(*CountingSum(layout, {samples, updates}, 2, 5) == 3 + 4 + 5);
  CHECK(*CountingSum(layout, {samples, updates}, 5, 5) == 0);
  CHECK(CountingSum(layout, {samples, updates}, 2, 9).status().message() ==
        "rows out of range: rows=8 got=2-9");
  CHECK_FALSE(CountingSum(layout, {samples, updates}, 3, 2).ok());
}

}  // namespace
}  // namespace evergrad::worker

// Tests where shards are placed, with a table of cases, and how many closures a worker may hold.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>

#include "common/optimizers/registry.h"
#include "common/sharding/partitioner.h"
#include "coordinator/scheduler/grant_sizing.h"
#include "coordinator/scheduler/placement.h"

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

std::vector<ServerLoad> Servers(int n) {
  std::vector<ServerLoad> servers;
  for (int i = 0; i < n; ++i) servers.push_back({std::to_string(i), 0});
  return servers;
}

std::map<std::string, std::uint64_t> Loads(const std::vector<ShardSize>& shards,
                                           const std::vector<Placement>& placements) {
  std::map<std::string, std::uint64_t> loads;
  for (const Placement& p : placements) loads[p.server] += shards[p.shard.value()].bytes;
  return loads;
}

std::vector<ShardSize> MlpShards(const char* optimizer) {
  std::vector<ShardSize> shards;
  const std::vector<std::vector<std::uint64_t>> shapes = {{784, 256}, {256},     {256, 128},
                                                          {128},      {128, 10}, {10}};
  for (const auto& dims : shapes) {
    const auto ranges =
        sharding::PartitionRows(sharding::MinSize{64 * 1024, std::nullopt}, tensor::Shape(dims));
    REQUIRE(ranges.ok());
    const std::uint64_t row = dims.size() > 1 ? dims[1] * 4 : 4;
    for (const auto& range : *ranges)
      shards.push_back({ShardId(static_cast<std::uint32_t>(shards.size())),
                        (range.end - range.begin) * row *
                            (1 + optimizers::StatesPerValue({.type = optimizer}))});
  }
  return shards;
}

}  // namespace

TEST_CASE("the MLP's bytes with slots are balanced over three servers within a factor of 1.2") {
  const std::vector<ShardSize> shards = MlpShards("adam");
  for (const int n : {2, 3}) {
    const auto loads = Loads(shards, PlaceShards(shards, Servers(n)));
    REQUIRE(loads.size() == static_cast<std::size_t>(n));
    std::uint64_t sum = 0, most = 0, least = ~0ull;
    for (const auto& [server, bytes] : loads) {
      sum += bytes;
      most = std::max(most, bytes);
      least = std::min(least, bytes);
    }
    CHECK(static_cast<double>(most) / (static_cast<double>(sum) / n) <= 1.2);
    if (n == 2) CHECK(static_cast<double>(least) >= 0.3 * static_cast<double>(sum));
  }
}

TEST_CASE(
    "the largest shards are placed first, on the least loaded server, in the order of shard "
    "numbers") {
  const std::vector<ShardSize> shards = {
      {ShardId(0), 1}, {ShardId(1), 10}, {ShardId(2), 6}, {ShardId(3), 5}};
  const auto placements = PlaceShards(shards, Servers(2));
  REQUIRE(placements.size() == 4);
  for (std::uint32_t i = 0; i < 4; ++i) CHECK(placements[i].shard == ShardId(i));
  CHECK(placements[1].server == "0");
  CHECK(placements[2].server == "1");
  CHECK(placements[3].server == "1");
  CHECK(placements[0].server == "0");
}

TEST_CASE("bytes that a server already holds count, and without servers there is no placement") {
  const auto placements = PlaceShards({{ShardId(0), 10}}, {{"0", 100}, {"1", 5}});
  REQUIRE(placements.size() == 1);
  CHECK(placements[0].server == "1");
  CHECK(PlaceShards({{ShardId(0), 10}}, {}).empty());
}

TEST_CASE("shards without bytes are spread evenly too") {
  std::vector<ShardSize> shards;
  for (std::uint32_t i = 0; i < 8; ++i) shards.push_back({ShardId(i), 0});
  std::map<std::string, int> counts;
  for (const Placement& p : PlaceShards(shards, Servers(4))) ++counts[p.server];
  for (const auto& [server, n] : counts) CHECK(n == 2);
  CHECK(counts.size() == 4);
}

TEST_CASE(
    "a worker holds work for an absence of the coordinator, at least two closures and at most the "
    "limit") {
  const GrantSizing sizing{std::chrono::seconds(5), 2, 64};
  struct Row {
    double seconds;
    std::uint64_t remaining;
    std::uint32_t workers, want;
  };
  for (const Row& row :
       std::vector<Row>{{0, 1000, 2, 2},    // no closure has been timed yet
                        {1.0, 1000, 2, 5},  // closures of one second for an absence of five seconds
                        {100, 1000, 2, 2},  // long closures, so one runs and one is queued
                        // The fewer closures remain before the barrier, the fewer each worker gets.
                        {0.001, 100000, 2, 64},
                        {0.001, 40, 2, 11},
                        {0.001, 0, 2, 2}}) {
    CAPTURE(row.seconds, row.remaining);
    CHECK(AttemptsAhead(sizing, row.seconds, row.remaining, row.workers) == row.want);
  }
}

TEST_CASE("the rate follows the measurements") {
  ClosureRate rate;
  CHECK(rate.seconds_per_closure() == 0);
  rate.OnDone(std::chrono::seconds(2), std::chrono::seconds(0));
  CHECK(rate.seconds_per_closure() == Approx(2.0));
  for (int i = 0; i < 40; ++i) rate.OnDone(std::chrono::seconds(3), std::chrono::seconds(2));
  CHECK(rate.seconds_per_closure() == Approx(1.0).epsilon(0.01));
}

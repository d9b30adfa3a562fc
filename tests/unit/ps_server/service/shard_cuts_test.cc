// Tests cuts of dense shards. snapshots_test.cc tests the cuts of tables, which are taken in
// slices.
#include "ps_server/service/shard_cuts.h"

#include <catch2/catch.hpp>

#include "service_fixture.h"

namespace evergrad::ps_server {
namespace {

constexpr ShardKey kKey{JobUid(kJob), ShardId(0)};

struct Fixture : ShardsFixture {
  ShardCuts cuts{&executor, &shards};
  HostedShard* hosted = Add(CountingShard(0));
  std::vector<absl::StatusOr<ShardCut>> taken;

  void Take(ShardEpoch epoch = kEpoch, bool stop = false) {
    cuts.Take(kKey, epoch, stop,
              [this](absl::StatusOr<ShardCut> cut) { taken.push_back(std::move(cut)); });
  }
};

TEST_CASE_METHOD(Fixture, "a cut between two updates is taken at once") {
  Take();
  REQUIRE(taken.size() == 1);
  REQUIRE(taken[0].ok());
  CHECK(taken[0]->lsn == 0);
  CHECK(taken[0]->epoch == kEpoch);
}

TEST_CASE_METHOD(Fixture, "a shard that is not held at the epoch is not cut") {
  Take({1, 6});
  shards.Remove(kKey);
  Take();
  REQUIRE(taken.size() == 2);
  CHECK(absl::IsNotFound(taken[0].status()));
  CHECK(absl::IsNotFound(taken[1].status()));
}

TEST_CASE_METHOD(Fixture, "cuts during an apply wait for its end and contain the update") {
  Add(CountingShard(1));
  BeginApply(hosted);
  Take();
  Take();
  CHECK(taken.empty());
  cuts.ApplyEnded({JobUid(kJob), ShardId(1)}, *shards.Find({JobUid(kJob), ShardId(1)})->shard);
  CHECK(taken.empty());
  EndApply(hosted);
  cuts.ApplyEnded(kKey, *hosted->shard);
  REQUIRE(taken.size() == 2);
  REQUIRE(taken[1].ok());
  CHECK(taken[1]->lsn == 1);
  cuts.ApplyEnded(kKey, *hosted->shard);
  CHECK(taken.size() == 2);
}

TEST_CASE_METHOD(Fixture, "a waiting cut of a removed shard is refused") {
  BeginApply(hosted);
  Take();
  cuts.Removed(kKey, kEpoch);
  REQUIRE(taken.size() == 1);
  CHECK(absl::IsNotFound(taken[0].status()));
  CHECK(taken[0].status().message().find("shard=0") != std::string::npos);
}

TEST_CASE_METHOD(Fixture, "the shard of a last cut has stopped") {
  Take(kEpoch, /*stop=*/false);
  CHECK_FALSE(hosted->shard->stopped());
  BeginApply(hosted);
  Take(kEpoch, /*stop=*/true);
  CHECK(hosted->shard->stopped());
  CHECK(taken.size() == 1);
  EndApply(hosted);
  cuts.ApplyEnded(kKey, *hosted->shard);
  REQUIRE(taken.size() == 2);
  CHECK(taken[1]->lsn == 1);
}

}  // namespace
}  // namespace evergrad::ps_server

#include "ps_server/service/hosted_shards.h"

#include <catch2/catch.hpp>

#include "service_fixture.h"

namespace evergrad::ps_server {
namespace {

ShardKey KeyOf(std::uint32_t shard, std::uint64_t job = kJob) {
  return {JobUid(job), ShardId(shard)};
}

TEST_CASE_METHOD(ShardsFixture, "a shard is found by its key, and at its epoch only") {
  HostedShard* const hosted = Add(CountingShard(3));
  CHECK(shards.Find(KeyOf(3)) == hosted);
  CHECK(shards.Find(KeyOf(2)) == nullptr);
  CHECK(shards.Find(KeyOf(3, kJob + 1)) == nullptr);
  CHECK(shards.Find(KeyOf(3), kEpoch) == hosted);
  CHECK(shards.Find(KeyOf(3), ShardEpoch{1, 6}) == nullptr);
}

TEST_CASE_METHOD(ShardsFixture, "FindNext finds each shard in any order of keys") {
  for (std::uint32_t shard = 0; shard < 4; ++shard) Add(CountingShard(shard));
  for (const std::uint32_t shard : {0, 1, 2, 3, 0, 3, 3, 1, 2, 0}) {
    HostedShard* const hosted = shards.FindNext(KeyOf(shard));
    REQUIRE(hosted != nullptr);
    CHECK(hosted->shard->settings().shard == ShardId(shard));
  }
  CHECK(shards.FindNext(KeyOf(9)) == nullptr);
  CHECK(shards.FindNext(KeyOf(0)) != nullptr);
}

TEST_CASE_METHOD(ShardsFixture, "the shard that FindNext expects may be removed and held again") {
  for (std::uint32_t shard = 0; shard < 3; ++shard) Add(CountingShard(shard));
  REQUIRE(shards.FindNext(KeyOf(0)) != nullptr);
  shards.Remove(KeyOf(1));
  CHECK(shards.FindNext(KeyOf(1)) == nullptr);
  REQUIRE(shards.FindNext(KeyOf(0)) != nullptr);
  Add(CountingShard(1));
  HostedShard* const hosted = shards.FindNext(KeyOf(1));
  REQUIRE(hosted != nullptr);
  CHECK(hosted->shard->settings().shard == ShardId(1));
}

TEST_CASE_METHOD(ShardsFixture, "the keys of one job, and of all jobs") {
  Add(CountingShard(0));
  Add(CountingShard(2));
  Add(CountingShard(1, 4, kJob + 1));
  CHECK(shards.KeysOf(JobUid(kJob)) == std::set<ShardKey>{KeyOf(0), KeyOf(2)});
  CHECK(shards.KeysOf(JobUid(kJob + 1)) == std::set<ShardKey>{KeyOf(1, kJob + 1)});
  CHECK(shards.KeysOf(JobUid(0)).empty());
  CHECK(shards.KeysOf(std::nullopt).size() == 3);
}

}  // namespace
}  // namespace evergrad::ps_server

#include "ps_server/service/shard_reports.h"

#include <catch2/catch.hpp>

#include <algorithm>

#include "service_fixture.h"

namespace evergrad::ps_server {
namespace {

struct Fixture : ShardsFixture {
  ShardReports reports{&executor, &shards};
  std::vector<std::vector<v1::ShardState>> made;

  void Begin(bool digests, std::uint64_t job = 0) {
    reports.Begin(JobUid(job), digests,
                  [this](std::vector<v1::ShardState> states) { made.push_back(states); });
  }
  void EndApplyAndRunWaiting(HostedShard* hosted) {
    for (const auto& task : EndApply(hosted)) executor.Post(task);
    executor.RunReady();
  }
};

TEST_CASE_METHOD(Fixture, "a report has the shards of its job, or all") {
  Add(CountingShard(0));
  Add(CountingShard(1));
  Add(CountingShard(1, 4, kJob + 1));
  Begin(false);
  Begin(false, kJob);
  Begin(true, kJob + 1);
  Begin(true, kJob + 2);
  REQUIRE(made.size() == 4);
  CHECK(made[0].size() == 3);
  CHECK(made[1].size() == 2);
  REQUIRE(made[2].size() == 1);
  CHECK(made[2][0].job_uid() == kJob + 1);
  CHECK(made[3].empty());
}

TEST_CASE_METHOD(Fixture, "a report waits for the end of an apply") {
  HostedShard* const hosted = Add(CountingShard(0));
  const bool digests = GENERATE(false, true);
  BeginApply(hosted);
  Begin(digests);
  executor.RunReady();
  CHECK(made.empty());
  EndApplyAndRunWaiting(hosted);
  REQUIRE(made.size() == 1);
  CHECK(made[0].at(0).vlsn() == 1);
  CHECK((made[0][0].digest() != 0) == digests);
}

TEST_CASE_METHOD(Fixture, "a shard that is dropped before its turn is not reported") {
  HostedShard* const hosted = Add(CountingShard(0));
  Add(CountingShard(1));
  const bool digests = GENERATE(false, true);
  BeginApply(hosted);
  Begin(digests);
  const auto waiting = std::exchange(hosted->after_apply, {});
  shards.Remove({JobUid(kJob), ShardId(0)});
  for (const auto& task : waiting) task();
  executor.RunReady();
  REQUIRE(made.size() == 1);
  REQUIRE(made[0].size() == 1);
  CHECK(made[0][0].shard() == 1);
}

TEST_CASE_METHOD(Fixture, "reports with digests share the sums that are pending") {
  // The digest of a shard takes one task, because the shard has 512 KiB of values and as much
  // optimizer state.
  constexpr std::uint64_t kRows = 128 * 1024;
  for (std::uint32_t shard = 0; shard < 3; ++shard) Add(CountingShard(shard, kRows));
  Begin(true);  // computes the digest of shard 0 at once
  CHECK(made.empty());
  Begin(true);  // computes the digest of shard 0 again, because only pending digests are shared
  CHECK(executor.RunReady() == 3);
  REQUIRE(made.size() == 2);
  for (const auto& states : made) {
    REQUIRE(states.size() == 3);
    CHECK(states[0].digest() == states[1].digest());
  }
  CHECK(made[0][0].shard() == 0);
  CHECK(made[1][2].shard() == 0);
}

}  // namespace
}  // namespace evergrad::ps_server

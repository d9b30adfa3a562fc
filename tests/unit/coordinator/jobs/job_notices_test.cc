// Tests the messages that tell the tasks of a job about the job, without a Job object.
#include "coordinator/jobs/job_notices.h"

#include <catch2/catch.hpp>

#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

struct Fixture : PartFixture {
  Fixture() {
    id.yaml = "name: part";
    Add(TaskId(7), true);
    Add(TaskId(8), false);
  }
  void Add(TaskId task, bool ready) {
    JobWorker& worker = roster.workers()[task];
    worker.task = task;
    worker.ready = ready;
  }

  EpochAccount epochs{{}, MonoTime{0}};
  WorkerRoster roster{Part(), &epochs};
  TaskTotals totals;
  JobNotices notices{Part(), &roster, &totals};
};

TEST_CASE("the job is told to every task that is ready, with its plan once there is one") {
  const bool planned = GENERATE(false, true);
  Fixture f;
  if (!planned) f.plan.reset();
  f.shards.Find(f.kSecond)->ready = false;
  f.notices.SendInfo();
  CHECK(f.Take(TaskId(8)).empty());
  CHECK(f.Take(f.kSecond).empty());
  for (const TaskId task : {TaskId(7), f.kFirst}) {
    const auto sent = f.Take(task);
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].job().yaml() == "name: part");
    CHECK(sent[0].job().plan().fingerprint() == (planned ? "plan" : ""));
  }
}

// Servers get the key in Assign messages (LEDGER line 34).
TEST_CASE("no task is told the key of the grants with the job") {
  Fixture f;
  f.id.grant_key = "the key";
  f.notices.SendInfo();
  for (const TaskId task : {TaskId(7), f.kFirst}) {
    const auto sent = f.Take(task);
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].SerializeAsString().find("the key") == std::string::npos);
  }
}

TEST_CASE("the map names the owner of each shard and the owner's address, and goes to workers") {
  Fixture f;
  f.Place();
  v1::Endpoint endpoint;
  endpoint.set_address("b:1");
  f.totals.BeginServer("b", 2, endpoint);
  f.notices.SendMap();
  CHECK(f.Take(f.kFirst).empty());
  const auto sent = f.Take(TaskId(7));
  REQUIRE(sent.size() == 1);
  const v1::ShardMap& map = sent[0].map();
  REQUIRE(map.shards_size() == 2);
  CHECK(map.shards(0).server_identity() == "a");
  CHECK_FALSE(map.shards(0).has_endpoint());
  CHECK(map.shards(1).server_identity() == "b");
  CHECK(map.shards(1).endpoint().address() == "b:1");
  f.book.reset();
  f.notices.SendMap();
  CHECK(f.Take(TaskId(7)).empty());
}

TEST_CASE("a worker that has dropped the job is told the job and its map, in this order") {
  Fixture f;
  f.Place();
  f.notices.Introduce(TaskId(8));
  const auto sent = f.Take(TaskId(8));
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].has_job());
  CHECK(sent[1].map().shards_size() == 2);
}

TEST_CASE("a server is told once which closures its own shards are to close") {
  Fixture f;
  f.Place();
  const auto granted = f.book->NextGrant(TaskId(7));
  REQUIRE(granted);
  f.book->OnDone(granted->closure, granted->attempt, f.book->durable().version,
                 f.book->durable().version);
  f.shards.Find(f.kSecond)->ready = false;
  f.notices.SendCloses();
  f.notices.SendCloses();
  CHECK(f.Take(f.kSecond).empty());
  const auto sent = f.Take(f.kFirst);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].close().shard() == 0);
  CHECK(client::FromProto(sent[0].close().done())->Contains(granted->closure.value()));
}

TEST_CASE("the end of the job names its state, and goes to workers, servers or both") {
  const bool workers = GENERATE(false, true), servers = GENERATE(false, true);
  Fixture f;
  f.notices.SendEnded(JobState::kCancelled, workers, servers);
  CHECK(f.Take(TaskId(7)).size() == (workers ? 1 : 0));
  const auto sent = f.Take(f.kFirst);
  REQUIRE(sent.size() == (servers ? 1 : 0));
  if (servers) CHECK(sent[0].job_ended().state() == "CANCELLED");
}

}  // namespace
}  // namespace evergrad::coordinator

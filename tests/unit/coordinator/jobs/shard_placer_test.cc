// Tests how shards are placed at servers and assigned to them, without a Job object.
#include "coordinator/jobs/shard_placer.h"

#include <catch2/catch.hpp>

#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

using std::chrono::seconds;

struct Fixture : PartFixture {
  // Returns the shards that were assigned to `task` since the last call.
  std::vector<std::uint32_t> AssignsOf(TaskId task) {
    std::vector<std::uint32_t> assigned;
    for (const v1::CoordinatorMessage& message : Take(task)) {
      if (message.has_assign()) assigned.push_back(message.assign().spec().shard());
    }
    return assigned;
  }
  std::size_t DropsOf(TaskId task) {
    std::size_t drops = 0;
    for (const v1::CoordinatorMessage& message : Take(task)) drops += message.has_drop();
    return drops;
  }
  v1::Assigned Assigned(std::uint32_t shard, const absl::Status& status = absl::OkStatus()) {
    v1::Assigned assigned;
    assigned.set_shard(shard);
    *assigned.mutable_epoch() = EpochOf(shard);
    assigned.set_ok(status.ok());
    if (!status.ok()) *assigned.mutable_error() = client::ToErrorDetail(status);
    return assigned;
  }
  // Adds a durable file of `shard`, to which the shard can be rolled back.
  void AddSnapshot(std::uint32_t shard, std::uint64_t lsn) {
    Snapshot snapshot;
    snapshot.folder = "/saved";
    snapshot.file = absl::StrCat("shard-", lsn);
    snapshot.epoch = book->durable().map[shard].epoch;
    snapshot.lsn = lsn;
    book->AddSnapshot(ShardId(shard), snapshot);
  }

  DeathBackoff backoff{options.death_backoff};
  ShardQueries queries{id.uid, [](TaskId, const v1::CoordinatorMessage&) {}};
  ShardPlacer placer{Part(), &backoff, &queries};
};

TEST_CASE("the first placement divides the shards, and its record is committed before an Assign") {
  Fixture f;
  f.store_fails = true;
  f.placer.Place();
  CHECK(f.said == std::vector<std::string>{"persist"});
  CHECK(f.host.sent.empty());
  Fixture g;
  g.placer.Place();
  CHECK(g.said == std::vector<std::string>{"persist", "map"});
  CHECK(g.AssignsOf(g.kFirst).size() == 1);
  CHECK(g.AssignsOf(g.kSecond).size() == 1);
  CHECK(g.placer.rolled_back() == 0);
  CHECK(g.placer.OnAssigned(g.kFirst, g.Assigned(0)));
  CHECK_FALSE(g.shards.AllHeld());
  CHECK(g.placer.OnAssigned(g.kSecond, g.Assigned(1)));
  CHECK(g.shards.AllHeld());
}

TEST_CASE("shards of a lost server go to a present server that stays") {
  Fixture f;
  f.Place();
  f.shards.servers().erase(f.kSecond);
  f.placer.GiveAway("b");
  f.shards.Find(f.kFirst)->leaving = "notice";
  f.placer.Place();
  CHECK(f.AssignsOf(f.kFirst).empty());
  CHECK(f.placer.WaitingFor() == "servers: none can take 1 shard");
  f.AddServer(TaskId(3), "c");
  f.placer.Place();
  CHECK(f.AssignsOf(TaskId(3)) == std::vector<std::uint32_t>{1});
  CHECK(f.placer.rolled_back() == 1);
  CHECK(f.Said("after rollback: a server was lost"));
  CHECK(f.Said("rollback: all shards were placed again: 1 shard goes back to the initial values"));
}

TEST_CASE("a shard that cannot be loaded is retried, and at last fails the job") {
  Fixture f;
  f.options.retries_max = 1;
  f.Place();
  CHECK_FALSE(f.placer.OnAssigned(f.kFirst, f.Assigned(0, absl::UnavailableError("busy"))));
  CHECK(f.Said("shard 0 could not be loaded by ps_server/a (failures in a row: 1): busy"));
  f.placer.Retry(f.host.Now());
  CHECK(f.shards.unplaced().empty());
  f.placer.Retry(f.host.Now() + f.options.retry_min);
  CHECK(f.shards.unplaced().count(ShardId(0)) == 1);
  f.placer.OnAssigned(f.kFirst, f.Assigned(0, absl::UnavailableError("busy")));
  CHECK(f.Said("fail machine: busy"));
}

TEST_CASE(
    "a damaged file is removed from the list, and the shard is loaded from an older one at once") {
  Fixture f;
  f.Place();
  f.AddSnapshot(0, 1);
  f.AddSnapshot(0, 2);
  f.shards.Unplace(ShardId(0));
  f.shards.Find(f.kSecond)->ready = false;
  f.placer.Place();
  REQUIRE(f.AssignsOf(f.kFirst).size() == 1);
  f.placer.OnAssigned(f.kFirst, f.Assigned(0, absl::DataLossError("torn")));
  CHECK(f.Said("the previous snapshot is used: shard-1"));
  CHECK(f.AssignsOf(f.kFirst) == std::vector<std::uint32_t>{0});
  CHECK(f.book->NewestSnapshot(ShardId(0))->file == "shard-1");
  CHECK_FALSE(f.Said("fail"));
}

TEST_CASE("a server that reports another server's shard is told to drop it") {
  Fixture f;
  f.Place();
  CHECK_FALSE(f.placer.OnAssigned(f.kFirst, f.Assigned(1)));
  CHECK(f.DropsOf(f.kFirst) == 1);
  CHECK(f.host.foreign == std::vector<std::string>{"Assigned for a shard of another server"});
}

TEST_CASE("a server that registers without its shard gets it anew, unless it backs off") {
  const bool backs_off = GENERATE(false, true);
  Fixture f;
  f.Place();
  for (int i = 0; backs_off && i < 4; ++i)
    f.backoff.OnDeath(f.host.Now(), Role::kPsServer, "b", "killed", "host");
  REQUIRE(f.placer.BacksOff("b") == backs_off);
  JobServer& server = f.AddServer(f.kSecond, "b");
  REQUIRE(f.placer.Admit(server, {}));
  CHECK(f.Take(f.kSecond).empty());  // nothing is assigned before the server is ready
  f.placer.OnReady(server);
  CHECK(f.AssignsOf(f.kSecond).size() == (backs_off ? 0u : 1u));
  CHECK(f.shards.unplaced().count(ShardId(1)) == (backs_off ? 1u : 0u));
  CHECK(f.Said("after rollback: a server lost its shards"));
}

}  // namespace
}  // namespace evergrad::coordinator

// Tests the cuts of one checkpoint round, without CheckpointRounds and without a Job object.
#include "coordinator/jobs/checkpoint_cuts.h"

#include <catch2/catch.hpp>

#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

// Server "a" holds shard 0, and server "b" holds shard 1.
struct Fixture : PartFixture {
  Fixture() { Place(); }
  void Order(const std::set<ShardId>& skipped = {}) {
    cuts.Order("/saved", [&](ShardId shard) { return skipped.contains(shard); });
  }
  bool Awaits(std::uint32_t shard) const {
    return cuts.Awaits(ShardId(shard), book->durable().map[shard].epoch);
  }

  CheckpointCuts cuts{Part()};
};

TEST_CASE("each connected server is told once which of its shards to save, and where") {
  Fixture f;
  f.Order();
  const auto sent = f.Take(f.kFirst);
  REQUIRE(sent.size() == 1);
  const v1::CutShards& cut = sent[0].cut();
  CHECK(cut.job_uid() == f.id.uid.value());
  CHECK(cut.folder() == "/saved");
  CHECK(cut.plan_fingerprint() == "plan");
  REQUIRE(cut.shards_size() == 1);
  CHECK(cut.shards(0).shard() == 0);
  CHECK(cut.shards(0).epoch().n() == f.EpochOf(0).n());
  CHECK(f.Take(f.kSecond).size() == 1);
  CHECK(f.cuts.awaited().size() == 2);
}

TEST_CASE("shards that are skipped, not held or without a place are not ordered") {
  Fixture f;
  f.Order({ShardId(0)});
  CHECK(f.Take(f.kFirst).empty());
  CHECK_FALSE(f.Awaits(0));
  CHECK(f.Awaits(1));
  f.shards.Give(ShardId(0), /*held=*/false);
  f.shards.Unplace(ShardId(1));
  f.Take(f.kSecond);
  f.Order();
  CHECK(f.Take(f.kFirst).empty());
  CHECK(f.Take(f.kSecond).empty());
  CHECK(f.cuts.awaited().empty());
}

TEST_CASE("an answer is awaited for the ordered epoch of a shard, and once") {
  Fixture f;
  f.Order();
  CHECK_FALSE(f.cuts.Awaits(ShardId(0), ShardEpoch(9, 9)));
  REQUIRE(f.Awaits(0));
  f.cuts.Answered(ShardId(0));
  CHECK_FALSE(f.Awaits(0));
  CHECK(f.Awaits(1));
  f.cuts.Clear();
  CHECK_FALSE(f.Awaits(1));
}

TEST_CASE("no answer is awaited of a server that has disconnected or has lost its shard") {
  Fixture f;
  f.Order();
  f.cuts.DropLost();
  CHECK(f.cuts.awaited().size() == 2);
  f.shards.Find(f.kFirst)->ready = false;
  f.cuts.DropLost();
  CHECK_FALSE(f.cuts.awaited().contains(ShardId(0)));
  f.book->Rollback(ShardId(1), "b");
  f.cuts.DropLost();
  CHECK(f.cuts.awaited().empty());
}

}  // namespace
}  // namespace evergrad::coordinator

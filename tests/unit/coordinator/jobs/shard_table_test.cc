// Which shards are held, which wait to be placed, and which servers are there.
#include "coordinator/jobs/shard_table.h"

#include <catch2/catch.hpp>

namespace evergrad::coordinator {
namespace {

const TaskId kFirst(1), kSecond(2);

struct Fixture {
  Fixture() {
    table.Plan({10, 20});
    for (const auto& [task, identity] : {std::pair{kFirst, "a"}, std::pair{kSecond, "b"}}) {
      table.servers()[task].task = task;
      table.servers()[task].identity = identity;
    }
  }
  ShardTable table;
};

TEST_CASE("all shards are held once each is placed and its owner has said so") {
  Fixture f;
  REQUIRE(f.table.size() == 2);
  CHECK(f.table[ShardId(1)].bytes == 20);
  f.table.Give(ShardId(0), true);
  f.table.Give(ShardId(1), true);
  CHECK_FALSE(f.table.AllHeld());  // nothing was placed yet
  f.table.SetPlaced();
  CHECK(f.table.AllHeld());
  f.table.Give(ShardId(1), false);
  CHECK_FALSE(f.table.AllHeld());
}

TEST_CASE("a shard without a place is not held, and its next owner has to say that it holds it") {
  Fixture f;
  f.table.SetPlaced();
  f.table.Give(ShardId(0), true);
  f.table.Give(ShardId(1), true);
  f.table.Unplace(ShardId(1));
  CHECK(f.table.unplaced() == std::set<ShardId>{ShardId(1)});
  f.table[ShardId(1)].held = true;
  CHECK_FALSE(f.table.AllHeld());  // a late word of the former owner
  f.table.Give(ShardId(1), false);
  CHECK(f.table.unplaced().empty());
  CHECK_FALSE(f.table.AllHeld());
}

TEST_CASE("a server is gone if it is neither here nor waited for") {
  Fixture f;
  f.table.servers()[kSecond].ready = true;
  CHECK(f.table.Ready() == ShardQueries::Servers{{kSecond, "b"}});
  CHECK(f.table.ServerOf("a")->task == kFirst);
  CHECK(f.table.ServerOf("") == nullptr);
  CHECK_FALSE(f.table.IsGone("a"));  // away is not gone
  CHECK(f.table.IsGone("c"));
  f.table.awaited()["c"] = MonoTime(5);
  CHECK_FALSE(f.table.IsGone("c"));
  f.table.Clear();
  CHECK(f.table.IsGone("c"));
  CHECK(f.table.Find(kFirst) == nullptr);
}

}  // namespace
}  // namespace evergrad::coordinator

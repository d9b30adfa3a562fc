// Tests the table of a job's shards: which shards are held, which wait to be placed, and which
// servers are present.
#include "coordinator/jobs/shard_table.h"

#include <catch2/catch.hpp>

#include "common/client/protocol.h"

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

TEST_CASE("all shards are held when each is placed and its owner has confirmed it") {
  Fixture f;
  REQUIRE(f.table.size() == 2);
  CHECK(f.table[ShardId(1)].bytes == 20);
  f.table.Give(ShardId(0), true);
  f.table.Give(ShardId(1), true);
  CHECK_FALSE(f.table.AllHeld());  // the shards are not placed yet
  f.table.SetPlaced();
  CHECK(f.table.AllHeld());
  f.table.Give(ShardId(1), false);
  CHECK_FALSE(f.table.AllHeld());
}

TEST_CASE("a shard without an owner is not held, and its next owner must confirm it") {
  Fixture f;
  f.table.SetPlaced();
  f.table.Give(ShardId(0), true);
  f.table.Give(ShardId(1), true);
  f.table.Unplace(ShardId(1));
  CHECK(f.table.unplaced() == std::set<ShardId>{ShardId(1)});
  f.table[ShardId(1)].held = true;
  CHECK_FALSE(f.table.AllHeld());  // a late message of the former owner may set `held`
  f.table.Give(ShardId(1), false);
  CHECK(f.table.unplaced().empty());
  CHECK_FALSE(f.table.AllHeld());
}

TEST_CASE("a server is gone if it is neither present nor awaited") {
  Fixture f;
  f.table.servers()[kSecond].ready = true;
  CHECK(f.table.Ready() == ShardQueries::Servers{{kSecond, "b"}});
  CHECK(f.table.ServerOf("a")->task == kFirst);
  CHECK(f.table.ServerOf("") == nullptr);
  CHECK_FALSE(f.table.IsGone("a"));  // server "a" is disconnected, but not gone
  CHECK(f.table.IsGone("c"));
  f.table.awaited()["c"] = MonoTime(5);
  CHECK_FALSE(f.table.IsGone("c"));
  f.table.Clear();
  CHECK(f.table.IsGone("c"));
  CHECK(f.table.Find(kFirst) == nullptr);
}

TEST_CASE("a Hello says what a server holds of a job, is loading and has stopped") {
  v1::Hello hello;
  hello.set_process_uid(5);
  hello.set_leaving("notice");
  for (const std::uint32_t shard : {0, 1, 2}) {
    v1::HeldShard* held = hello.add_shards();
    held->set_job_uid(shard == 2 ? 8 : 7);
    held->set_shard(shard);
    held->set_loading(shard == 0);
    held->set_stopped_in(shard);
    *held->mutable_done() = client::ToProto(IntervalSet{shard});
  }
  const auto held = HeldShardsOf(hello, JobUid(7));
  REQUIRE(held.ok());
  REQUIRE(held->size() == 2);
  CHECK((*held)[1].done == IntervalSet{1});
  const JobServer server = JobServerOf(kFirst, "a", *held, hello);
  CHECK(server.loading == std::set<std::uint32_t>{0});
  CHECK(server.stopped == std::set<std::uint32_t>{1});
  CHECK(server.process == 5);
  CHECK(server.drains);
  CHECK_FALSE(server.ready);
  hello.mutable_shards(1)->mutable_refused()->add_bounds(3);
  CHECK(HeldShardsOf(hello, JobUid(7)).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(HeldShardsOf(hello, JobUid(8)).ok());  // the malformed set belongs to another job
}

TEST_CASE("after a restart the shards are placed if one of them has had an owner") {
  Fixture f;
  DurableState state;
  state.map.resize(2);
  f.table.Restore(ClosureBook({.closures = 4, .shards = 2}, state));
  CHECK_FALSE(f.table.placed());
  state.map[1].epoch = ShardEpoch{1, 1};
  f.table.Restore(ClosureBook({.closures = 4, .shards = 2}, state));
  CHECK(f.table.placed());
}

TEST_CASE("after a restart a shard is assigned its resumed file, or one newer than its epoch") {
  DurableState state;
  state.map.resize(2);
  state.snapshots.resize(2);
  for (const std::uint32_t p : {0, 1}) {
    state.map[p].epoch = ShardEpoch{1, 2};
    Snapshot snapshot;
    snapshot.folder = "/c";
    snapshot.file = p == 0 ? "newer" : "own";
    snapshot.epoch = ShardEpoch{1, p == 0 ? 1u : 2u};
    state.snapshots[p].push_back(snapshot);
  }
  Fixture f;
  f.table.Restore(ClosureBook({.closures = 4, .shards = 2}, state));
  CHECK(f.table[ShardId(0)].snapshot == "/c/newer");
  CHECK(f.table[ShardId(1)].snapshot.empty());
}

}  // namespace
}  // namespace evergrad::coordinator

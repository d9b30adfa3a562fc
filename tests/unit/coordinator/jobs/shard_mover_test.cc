// Tests the moves of shards from a server that leaves, without a Job object.
#include "coordinator/jobs/shard_mover.h"

#include <catch2/catch.hpp>

#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

// Server "b" holds shard 1 and leaves. Server "a" stays.
struct Fixture : PartFixture {
  Fixture() {
    Place();
    shards.Find(kSecond)->leaving = "notice";
    shards.Find(kSecond)->drains = true;
    from = EpochOf(1);
  }
  void Stopped(const absl::Status& status = absl::OkStatus()) {
    v1::ShardStopped stopped;
    stopped.set_shard(1);
    *stopped.mutable_epoch() = from;
    stopped.set_bytes(100);
    if (!status.ok()) *stopped.mutable_error() = client::ToErrorDetail(status);
    mover.OnStopped(kSecond, stopped);
  }
  void Received(TaskId task, const absl::Status& status = absl::OkStatus()) {
    v1::ShardReceived received;
    received.set_shard(1);
    *received.mutable_epoch() = from;
    if (!status.ok()) *received.mutable_error() = client::ToErrorDetail(status);
    mover.OnReceived(task, received);
  }
  // Returns the kinds of the messages that were sent to `task` since the last call.
  std::vector<int> KindsOf(TaskId task) {
    std::vector<int> kinds;
    for (const v1::CoordinatorMessage& message : Take(task))
      kinds.push_back(message.message_case());
    return kinds;
  }

  DeathBackoff backoff{options.death_backoff};
  ShardQueries queries{id.uid, [](TaskId, const v1::CoordinatorMessage&) {}};
  ShardPlacer placer{Part(), &backoff, &queries};
  ShardMover mover{Part(), &placer};
  v1::Stamp from;
};

using Kinds = std::vector<int>;
using Message = v1::CoordinatorMessage;

TEST_CASE("a shard is stopped, received and committed, and then its old owner drops it") {
  Fixture f;
  f.host.clock.Advance(std::chrono::seconds(1));
  f.mover.Pump();
  CHECK(f.KindsOf(f.kSecond) == Kinds{Message::kStop});
  f.Stopped();
  CHECK(f.KindsOf(f.kFirst) == Kinds{Message::kReceive});
  CHECK(f.book->durable().map[1].server == "b");
  CHECK(f.said.empty());
  f.Received(f.kFirst);
  CHECK(f.book->durable().map[1].server == "a");
  CHECK(f.KindsOf(f.kFirst) == Kinds{Message::kAssign});
  CHECK(f.KindsOf(f.kSecond) == Kinds{Message::kDrop, Message::kDrained});
  REQUIRE(f.said.size() == 3);
  CHECK(f.said[0] == "persist");
  CHECK(f.said[1] == "map");
  CHECK(f.Said("drain: ps_server/b has handed over its shards: 1 shard is at other servers"));
}

TEST_CASE("no message of a move is sent before its record is committed") {
  Fixture f;
  f.mover.Pump();
  f.Stopped();
  f.KindsOf(f.kFirst), f.KindsOf(f.kSecond);
  f.store_fails = true;
  f.Received(f.kFirst);
  CHECK(f.KindsOf(f.kFirst).empty());
  CHECK(f.KindsOf(f.kSecond).empty());
}

TEST_CASE("a shard that no other server accepts stays, and its server is told the reason") {
  Fixture f;
  f.mover.Pump();
  f.Stopped();
  f.KindsOf(f.kSecond);
  f.Received(f.kFirst, absl::ResourceExhaustedError("full"));
  f.mover.Pump();  // the mover may retry later, but not yet
  CHECK(f.KindsOf(f.kSecond).empty());
  for (int i = 0; i < 2; ++i) {
    f.host.clock.Advance(f.options.retry_max);
    f.mover.Pump();
    CHECK(f.KindsOf(f.kSecond) == Kinds{Message::kStop});
    f.Stopped(absl::UnavailableError("busy"));
  }
  f.mover.Pump();
  CHECK(f.KindsOf(f.kSecond) == Kinds{Message::kDrained});
  CHECK(f.Said("ps_server/b is leaving, but its shards cannot be moved: shard 1: busy"));
}

TEST_CASE("if the receiver disconnects, another server receives the shard") {
  Fixture f;
  f.mover.Pump();
  f.Stopped();
  f.AddServer(TaskId(3), "c");
  f.shards.servers().erase(f.kFirst);
  f.mover.EndOf(f.kFirst);
  CHECK(f.KindsOf(TaskId(3)) == Kinds{Message::kReceive});
  f.Received(f.kFirst);  // this answer comes too late
  CHECK(f.book->durable().map[1].server == "b");
  f.Received(TaskId(3));
  CHECK(f.book->durable().map[1].server == "c");
}

TEST_CASE("a job that ends drops received shards and begins no move") {
  Fixture f;
  f.mover.Pump();
  f.Stopped();
  f.KindsOf(f.kFirst);
  f.mover.End();
  CHECK(f.KindsOf(f.kFirst) == Kinds{Message::kDrop});
  f.ending = true;
  f.KindsOf(f.kSecond);
  f.mover.Pump();
  CHECK(f.KindsOf(f.kSecond).empty());
}

TEST_CASE("a server without shards has handed over, and the only server cannot hand over") {
  const bool alone = GENERATE(false, true);
  Fixture f;
  if (alone)
    f.shards.servers().erase(f.kFirst);
  else
    f.book->Rollback(ShardId(1), "a");
  f.mover.Pump();
  f.mover.Pump();  // the message must not be sent again
  const std::vector<v1::CoordinatorMessage> sent = f.Take(f.kSecond);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].drained().cannot() == (alone ? "no other server is connected" : ""));
}

}  // namespace
}  // namespace evergrad::coordinator

// Tests how the shards of a job are sealed, without a Job object.
#include "coordinator/jobs/shard_seal.h"

#include <catch2/catch.hpp>

#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

struct Fixture : PartFixture {
  Fixture() {
    Place();
    seal.Begin();
  }
  void Sealed(TaskId task, std::uint32_t shard) {
    v1::Sealed sealed;
    sealed.set_shard(shard);
    *sealed.mutable_epoch() = EpochOf(shard);
    seal.OnSealed(task, sealed);
  }
  ShardSeal seal{Part()};
};

TEST_CASE("a job is sealed once each owner has answered, and only its owner answers for a shard") {
  Fixture f;
  const auto orders = f.Take(f.kFirst);
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].seal().shard() == 0);
  CHECK_FALSE(f.seal.IsComplete());
  CHECK(f.seal.WaitingFor() == "servers to seal their shards: 2 left");
  f.Sealed(f.kFirst, 0);
  f.Sealed(f.kFirst, 1);  // an answer about the shard of another server
  CHECK(f.host.foreign.size() == 1);
  CHECK_FALSE(f.seal.IsComplete());
  f.Sealed(f.kSecond, 1);
  CHECK(f.seal.IsComplete());
  CHECK(f.seal.WaitingFor().empty());
  CHECK(f.said.empty());
}

TEST_CASE("a shard whose server is gone is sealed; a server that comes back is told again") {
  Fixture f;
  f.Take(f.kSecond);
  f.shards.servers().erase(f.kFirst);
  f.seal.OnReady(*f.shards.Find(f.kSecond));
  CHECK(f.Take(f.kSecond).size() == 1);
  f.Sealed(f.kSecond, 1);
  CHECK(f.seal.IsComplete());
}

TEST_CASE("shards of silent owners are unmapped at the deadline, unless the store fails") {
  Fixture f;
  f.store_fails = GENERATE(false, true);
  f.host.clock.Advance(f.options.seal_timeout);
  CHECK(f.seal.IsComplete() == !f.store_fails);
  CHECK(f.Said(
      "servers did not answer while the job was sealed: 2 shards are taken from their servers"));
  CHECK(f.said.back() == "persist");
  CHECK(f.book->durable().map[0].server.empty());
}

TEST_CASE("a job without shards is sealed at once") {
  PartFixture f;
  ShardSeal seal(f.Part());
  seal.Begin();
  CHECK(seal.IsComplete());
  f.book.reset();
  seal.Begin();
  CHECK(seal.IsComplete());
}

}  // namespace
}  // namespace evergrad::coordinator

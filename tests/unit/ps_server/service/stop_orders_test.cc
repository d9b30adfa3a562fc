// Tests orders to stop a shard for a move that fail before the image of the shard's file exists.
// moves_test.cc tests the other orders.
#include "ps_server/service/stop_orders.h"

#include <catch2/catch.hpp>
#include <vector>

#include "service_fixture.h"

namespace evergrad::ps_server {
namespace {

constexpr ShardKey kKey{JobUid(kJob), ShardId(0)};

struct Fixture {
  metrics::Registry registry;
  Images images{{.registry = &registry}};
  std::vector<v1::ShardStopped> sent;
  SessionSender sender{[this](v1::TaskMessage message) {
    sent.push_back(message.stopped());
    return true;
  }};
  StopOrders OrdersTo(Images* to) {
    return StopOrders(
        {.executor = &server.control,
         .images = to,
         .directory = &server.directory,
         .sender = &sender,
         .shard_executor = [this](ShardId) -> ShardExecutor& { return server.shards; }});
  }
  StopOrders orders = OrdersTo(&images);
  PartSurroundings server;

  HeldShard* Put(bool loading = false) {
    HeldShard held;
    held.epoch = kEpoch;
    server.directory.Put(kKey, std::move(held));
    if (!loading) server.directory.EndLoading(server.directory.Find(kKey));
    return server.directory.Find(kKey);
  }
  static v1::StopShard StopOf(ShardEpoch epoch = kEpoch) {
    v1::StopShard stop;
    stop.set_job_uid(kJob);
    *stop.mutable_epoch() = client::ToProto(epoch);
    return stop;
  }
  absl::StatusCode CodeOf(std::size_t i) const {
    return client::FromErrorDetail(sent.at(i).error()).code();
  }
};

TEST_CASE_METHOD(Fixture, "a shard that is loading or not held at the epoch is answered NotFound") {
  orders.Submit(StopOf(), 3);
  const HeldShard* const held = Put(/*loading=*/true);
  orders.Submit(StopOf(), 3);
  orders.Submit(StopOf({1, 6}), 3);
  REQUIRE(sent.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(CodeOf(i) == absl::StatusCode::kNotFound);
  CHECK(held->stopped_in == 0);
}

TEST_CASE_METHOD(Fixture, "the directory keeps the term of the first order") {
  const HeldShard* const held = Put();
  orders.Submit(StopOf(), 3);
  orders.Submit(StopOf(), 4);
  CHECK(held->stopped_in == 3);
  CHECK(sent.empty());
}

TEST_CASE_METHOD(Fixture, "a server without images answers Unimplemented") {
  Put();
  OrdersTo(nullptr).Submit(StopOf(), 3);
  REQUIRE(sent.size() == 1);
  CHECK(CodeOf(0) == absl::StatusCode::kUnimplemented);
}

TEST_CASE_METHOD(Fixture, "a failed cut is answered, but only in the session of its order") {
  Put();  // the executor does not hold this shard
  orders.Submit(StopOf(), 3);
  server.RunAll();
  REQUIRE(sent.size() == 1);
  CHECK(CodeOf(0) == absl::StatusCode::kNotFound);
  orders.Submit(StopOf(), 3);
  sender.End();
  server.RunAll();
  CHECK(sent.size() == 1);
}

TEST_CASE_METHOD(Fixture, "a shard that is dropped before its cut is not answered") {
  Put();
  server.shards.Assign(CountingShard(0), kEpoch, kStart, {}, [](const ShardExecutor::Loaded&) {});
  orders.Submit(StopOf(), 3);
  server.executor.RunReady();
  server.directory.Remove(kKey);
  server.RunAll();
  CHECK(sent.empty());
  CHECK(images.bytes() == 0);
}

}  // namespace
}  // namespace evergrad::ps_server

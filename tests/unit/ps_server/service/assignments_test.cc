// Tests Assigns of shards that begin from the seed, and Assigns that are refused. snapshots_test.cc
// tests shards that are restored, and moves_test.cc those that are moved.
#include "ps_server/service/assignments.h"

#include <catch2/catch.hpp>
#include <vector>

#include "stage.h"

namespace evergrad::ps_server {
namespace {

constexpr ShardKey kKey{JobUid(kJob), ShardId(2)};

struct Fixture {
  std::vector<v1::Assigned> sent;
  SessionSender sender{[this](v1::TaskMessage message) {
    sent.push_back(message.assigned());
    return true;
  }};
  std::vector<ShardKey> cancelled;
  ReceivedShards received{{.jobs = &server.jobs}};
  Assignments assignments{
      {.executor = &server.control,
       .logger = &server.logger,
       .clock = &server.clock,
       .jobs = &server.jobs,
       .directory = &server.directory,
       .received = &received,
       .sender = &sender,
       .shard_executor = [this](ShardId) -> ShardExecutor& { return server.shards; },
       .cancel_orders = [this](const ShardKey& key) { cancelled.push_back(key); }}};
  PartSurroundings server;

  void Submit(const v1::CoordinatorMessage& message) { assignments.Submit(message.assign()); }
  static v1::CoordinatorMessage AssignOf(std::uint64_t epoch) {
    return Stage::AssignOf(2, {1, epoch}, 4, {1, epoch});
  }
  absl::StatusCode CodeOf(std::size_t i) const {
    return client::FromErrorDetail(sent.at(i).error()).code();
  }
};

TEST_CASE_METHOD(Fixture, "a shard is held as loading, and answered once when it is loaded") {
  Submit(AssignOf(5));
  Submit(AssignOf(5));  // the same order once more
  REQUIRE(server.directory.Find(kKey, {1, 5}) != nullptr);
  CHECK(server.directory.Find(kKey)->loading);
  CHECK(sent.empty());
  server.RunAll();
  CHECK_FALSE(server.directory.Find(kKey)->loading);
  CHECK(server.directory.Find(kKey)->value_bytes == 16);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].ok());
  CHECK(server.jobs.Find(JobUid(kJob)).shards_total == 64);
  Submit(AssignOf(5));
  CHECK(sent.size() == 2);
  CHECK(cancelled.empty());
}

TEST_CASE_METHOD(Fixture,
                 "an older epoch is refused, and a newer one takes the place of the answer") {
  Submit(AssignOf(5));
  Submit(AssignOf(4));
  REQUIRE(sent.size() == 1);
  CHECK(CodeOf(0) == absl::StatusCode::kFailedPrecondition);
  Submit(AssignOf(6));
  CHECK(cancelled == std::vector<ShardKey>{kKey});
  server.RunAll();
  REQUIRE(sent.size() == 2);
  CHECK(sent[1].ok());
  CHECK(sent[1].epoch().n() == 6);
}

TEST_CASE_METHOD(Fixture, "a malformed Assign changes nothing but the received shard") {
  Submit(AssignOf(5));
  server.RunAll();
  v1::CoordinatorMessage message = AssignOf(6);
  message.mutable_assign()->set_shards_total(2);
  Submit(message);
  message = AssignOf(6);
  message.mutable_assign()->mutable_spec()->mutable_variable()->clear_name();
  Submit(message);
  message = AssignOf(6);
  *message.mutable_assign()->mutable_moved_from() = client::ToProto(ShardEpoch{1, 5});
  Submit(message);
  message = AssignOf(6);
  message.mutable_assign()->mutable_snapshot()->set_bytes(1);  // the snapshot has no path
  Submit(message);
  server.RunAll();
  REQUIRE(sent.size() == 5);
  CHECK(CodeOf(1) == absl::StatusCode::kInvalidArgument);
  CHECK(CodeOf(2) == absl::StatusCode::kInvalidArgument);
  CHECK(CodeOf(3) == absl::StatusCode::kNotFound);
  CHECK(CodeOf(4) == absl::StatusCode::kInvalidArgument);
  CHECK(server.directory.Find(kKey, {1, 5}) != nullptr);
  CHECK(server.jobs.Find(JobUid(kJob)).version == MapVersion{1, 5});
  CHECK(cancelled.empty());
}

TEST_CASE_METHOD(Fixture, "a shard that cannot be loaded is not held") {
  v1::CoordinatorMessage message = AssignOf(5);
  message.mutable_assign()->mutable_spec()->mutable_variable()->mutable_optimizer()->set_type("x");
  Submit(message);
  CHECK(server.directory.loading() == 1);
  server.RunAll();
  REQUIRE(sent.size() == 1);
  CHECK(CodeOf(0) == absl::StatusCode::kInvalidArgument);
  CHECK(server.directory.shards() == 0);
  CHECK(server.directory.loading() == 0);
  CHECK(server.jobs.Find(JobUid(kJob)).counters == nullptr);
}

TEST_CASE_METHOD(Fixture, "a shard that is dropped before its file is read is not answered") {
  v1::CoordinatorMessage message = AssignOf(5);
  v1::SnapshotSource& source = *message.mutable_assign()->mutable_snapshot();
  source.set_uri("file:///job/shard");
  source.set_sha256(std::string(32, 'x'));
  Submit(message);
  REQUIRE(server.directory.Find(kKey) != nullptr);
  CHECK(server.directory.Find(kKey)->restoring());
  server.directory.Remove(kKey);
  server.RunAll();
  CHECK(sent.empty());
}

}  // namespace
}  // namespace evergrad::ps_server

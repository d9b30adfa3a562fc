// Assignments of shards from the seed, and refusals. Restores and moves are in snapshots_test.cc
// and moves_test.cc.
#include "ps_server/service/assignments.h"

#include <catch2/catch.hpp>
#include <vector>

#include "stage.h"

namespace evergrad::ps_server {
namespace {

constexpr ShardKey kKey{JobUid(kJob), ShardId(2)};

struct Fixture {
  ManualClock clock;
  log::Logger logger{{.level = log::Level::kError, .file = "/dev/null"}};
  JobTable jobs;
  ShardDirectory directory{&jobs, &logger};
  std::vector<v1::Assigned> sent;
  SessionSender sender{[this](v1::TaskMessage message) {
    sent.push_back(message.assigned());
    return true;
  }};
  std::vector<ShardKey> cancelled;
  ReceivedShards received{{.jobs = &jobs}};
  Assignments assignments{
      {.executor = &control,
       .logger = &logger,
       .clock = &clock,
       .jobs = &jobs,
       .directory = &directory,
       .received = &received,
       .sender = &sender,
       .shard_executor = [this](ShardId) -> ShardExecutor& { return shards; },
       .cancel_orders = [this](const ShardKey& key) { cancelled.push_back(key); }}};
  SectionMetrics metrics{};
  ShardExecutor shards{{.executor = &executor, .jobs = &jobs, .metrics = &metrics}};
  // Their tasks are destroyed first.
  runtime::ManualExecutor control{&clock}, executor{&clock};

  void Submit(const v1::CoordinatorMessage& message) { assignments.Submit(message.assign()); }
  static v1::CoordinatorMessage AssignOf(std::uint64_t epoch) {
    return Stage::AssignOf(2, {1, epoch}, 4, {1, epoch});
  }
  void RunAll() {
    while (executor.RunReady() + control.RunReady() > 0) {
    }
  }
  absl::StatusCode CodeOf(std::size_t i) const {
    return client::FromErrorDetail(sent.at(i).error()).code();
  }
};

TEST_CASE_METHOD(Fixture, "a shard is held as loading, and answered once when it is loaded") {
  Submit(AssignOf(5));
  Submit(AssignOf(5));  // a repeat
  REQUIRE(directory.Find(kKey, {1, 5}) != nullptr);
  CHECK(directory.Find(kKey)->loading);
  CHECK(sent.empty());
  RunAll();
  CHECK_FALSE(directory.Find(kKey)->loading);
  CHECK(directory.Find(kKey)->value_bytes == 16);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].ok());
  CHECK(jobs.Find(JobUid(kJob)).shards_total == 64);
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
  RunAll();
  REQUIRE(sent.size() == 2);
  CHECK(sent[1].ok());
  CHECK(sent[1].epoch().n() == 6);
}

TEST_CASE_METHOD(Fixture, "a malformed Assign changes nothing but the received shard") {
  Submit(AssignOf(5));
  RunAll();
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
  message.mutable_assign()->mutable_snapshot()->set_bytes(1);  // no path
  Submit(message);
  RunAll();
  REQUIRE(sent.size() == 5);
  CHECK(CodeOf(1) == absl::StatusCode::kInvalidArgument);
  CHECK(CodeOf(2) == absl::StatusCode::kInvalidArgument);
  CHECK(CodeOf(3) == absl::StatusCode::kNotFound);
  CHECK(CodeOf(4) == absl::StatusCode::kInvalidArgument);
  CHECK(directory.Find(kKey, {1, 5}) != nullptr);
  CHECK(jobs.Find(JobUid(kJob)).version == MapVersion{1, 5});
  CHECK(cancelled.empty());
}

TEST_CASE_METHOD(Fixture, "a shard that cannot be loaded is not held") {
  v1::CoordinatorMessage message = AssignOf(5);
  message.mutable_assign()->mutable_spec()->mutable_variable()->mutable_optimizer()->set_type("x");
  Submit(message);
  CHECK(directory.loading() == 1);
  RunAll();
  REQUIRE(sent.size() == 1);
  CHECK(CodeOf(0) == absl::StatusCode::kInvalidArgument);
  CHECK(directory.shards() == 0);
  CHECK(directory.loading() == 0);
  CHECK(jobs.Find(JobUid(kJob)).counters == nullptr);
}

TEST_CASE_METHOD(Fixture, "a shard that is dropped before its file is read is not answered") {
  v1::CoordinatorMessage message = AssignOf(5);
  v1::SnapshotSource& source = *message.mutable_assign()->mutable_snapshot();
  source.set_uri("file:///job/shard");
  source.set_sha256(std::string(32, 'x'));
  Submit(message);
  REQUIRE(directory.Find(kKey) != nullptr);
  CHECK(directory.Find(kKey)->restoring());
  directory.Remove(kKey);
  RunAll();
  CHECK(sent.empty());
}

}  // namespace
}  // namespace evergrad::ps_server

// Tests the table of sessions, and how the messages to a task are batched. The streams are fakes,
// and the executor is manual.
#include "coordinator/service/session_table.h"

#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "slow_store.h"
#include "tests/support/manual_executor.h"

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

// Keeps the messages that one task has received. Each batch is one string.
struct Stream final : transport::MessageStream {
  absl::Status Send(std::string bytes) override {
    if (!status.ok()) return status;
    v1::CoordinatorBatch batch;
    REQUIRE(batch.ParseFromString(bytes));
    std::string text;
    for (const v1::CoordinatorMessage& m : batch.messages())
      text += m.has_drain() ? m.drain().reason() : "!" + m.rejected().message();
    batches.push_back(text);
    return absl::OkStatus();
  }
  void Close() override { closed = true; }
  absl::Status status;
  std::vector<std::string> batches;
  bool closed = false;
};

v1::CoordinatorMessage Drain(const std::string& reason) {
  v1::CoordinatorMessage message;
  message.mutable_drain()->set_reason(reason);
  return message;
}
v1::CoordinatorMessage Rejection(const std::string& why) {
  v1::CoordinatorMessage message;
  message.mutable_rejected()->set_message(why);
  return message;
}

struct Stage {
  ManualClock clock;
  runtime::ManualExecutor control{&clock};
  log::Logger logger{[] {
    log::Options options;
    options.level = log::Level::kError;
    return options;
  }()};
  SlowStore store;
  DurabilityGate gate{&store, 200, [] { return true; }};
  std::vector<std::uint64_t> failed;
  int full = 0;
  SessionTable table{{&control, &logger, &gate,
                      [this](std::uint64_t number) { failed.push_back(number); },
                      [this] { ++full; }}};

  std::shared_ptr<Stream> Open(std::uint64_t number, MonoTime at = MonoTime{0}) {
    auto stream = std::make_shared<Stream>();
    Session session;
    session.number = number;
    session.stream = stream;
    session.opened_at = at;
    table.Open(std::move(session));
    return stream;
  }
};

}  // namespace

TEST_CASE("messages of one turn are sent as one batch, in order") {
  Stage stage;
  const auto stream = stage.Open(1);
  Session& session = *stage.table.Find(1);
  stage.table.Queue(session, Drain("a"));
  stage.table.Queue(session, Drain("b"));
  CHECK(stream->batches.empty());
  stage.control.RunReady();
  CHECK(stream->batches == std::vector<std::string>{"ab"});
  stage.table.Queue(session, Drain("c"));
  stage.control.RunReady();
  CHECK(stream->batches == std::vector<std::string>{"ab", "c"});
}

TEST_CASE("batches wait until the store has made their cause durable") {
  Stage stage;
  const auto stream = stage.Open(1);
  stage.store.accepted_now = 1;
  stage.table.Queue(*stage.table.Find(1), Drain("a"));
  stage.control.RunReady();
  CHECK(stream->batches.empty());
  stage.store.durable_now = 1;
  stage.gate.Release();
  CHECK(stream->batches == std::vector<std::string>{"a"});
}

TEST_CASE("a session whose messages exceed the gate's limit ends later") {
  Stage stage;
  const auto stream = stage.Open(7);
  stage.store.accepted_now = 1;
  stage.table.Queue(*stage.table.Find(7), Drain(std::string(150, 'a')));
  stage.control.RunReady();
  CHECK(stage.full == 0);
  stage.table.Queue(*stage.table.Find(7), Drain(std::string(150, 'b')));
  stage.table.Flush(7);
  CHECK(stage.full == 1);
  CHECK(stage.failed.empty());
  stage.control.RunReady();
  CHECK(stage.failed == std::vector<std::uint64_t>{7});
}

TEST_CASE("a session whose stream accepts nothing ends later") {
  Stage stage;
  const auto stream = stage.Open(7);
  stream->status = absl::ResourceExhaustedError("the peer does not read");
  stage.table.Queue(*stage.table.Find(7), Drain("a"));
  stage.table.Flush(7);
  CHECK(stage.failed.empty());
  stage.control.RunReady();
  CHECK(stage.failed == std::vector<std::uint64_t>{7});
}

TEST_CASE("the last message follows earlier ones, or overtakes those that wait for the store") {
  Stage stage;
  const auto open = stage.Open(1), waits = stage.Open(2);
  stage.table.Queue(*stage.table.Find(1), Drain("a"));
  stage.table.SendLast(*stage.table.Find(1), Rejection("b"));
  CHECK(open->batches == std::vector<std::string>{"a!b"});
  stage.store.accepted_now = 1;
  stage.table.Queue(*stage.table.Find(2), Drain("a"));
  stage.table.SendLast(*stage.table.Find(2), Rejection("b"));
  CHECK(waits->batches == std::vector<std::string>{"!b"});
}

TEST_CASE("a registered task has its session until the session is removed") {
  Stage stage;
  const auto first = stage.Open(1), second = stage.Open(2);
  stage.table.Find(1)->role = Role::kWorker;
  stage.table.Register(*stage.table.Find(1), TaskId(5), "a");
  CHECK(stage.table.Of(TaskId(5))->number == 1);
  CHECK(stage.table.Find(1)->Name() == "worker/a");
  CHECK(stage.table.RegisteredNumbers() == std::vector<std::uint64_t>{1});
  CHECK(stage.table.Of(TaskId(6)) == nullptr);
  stage.table.Defer(2);
  const auto removed = stage.table.Remove(1);
  REQUIRE(removed);
  CHECK(removed->task == TaskId(5));
  CHECK(first->closed);
  CHECK(stage.table.Of(TaskId(5)) == nullptr);
  CHECK_FALSE(stage.table.Remove(1));
  CHECK(stage.table.deferred().size() == 1);
  stage.table.Remove(2);
  CHECK(stage.table.deferred().empty());
  CHECK(second->closed);
  CHECK(stage.table.size() == 0);
}

TEST_CASE("sessions without a Hello are found by their age") {
  Stage stage;
  stage.Open(1, MonoTime{100});
  stage.Open(2, MonoTime{200});
  stage.Open(3, MonoTime{50});
  stage.table.Find(3)->stage = Session::Stage::kPending;
  CHECK(stage.table.WithoutHelloSince(MonoTime{150}) == std::vector<std::uint64_t>{1});
}

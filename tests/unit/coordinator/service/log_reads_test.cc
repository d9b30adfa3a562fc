// Tests how log lines are read, with fake streams in place of tasks.
#include "coordinator/service/log_reads.h"

#include <catch2/catch.hpp>

#include <deque>

#include "slow_store.h"
#include "tests/support/manual_executor.h"

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

struct Reply final : transport::UnaryResponder {
  void Answer(absl::StatusOr<std::string> response) override {
    CHECK_FALSE(answered);
    answered = true;
    status = response.status();
    if (response.ok()) REQUIRE(lines.ParseFromString(*response));
  }
  std::string Texts() const {
    std::string text;
    for (const v1::LogLine& line : lines.lines()) text += line.task() + ":" + line.text() + " ";
    return text;
  }
  bool answered = false;
  absl::Status status;
  v1::ReadTaskLogsResponse lines;
};

// A session that keeps the requests that its task has received.
struct Asked final : transport::MessageStream {
  absl::Status Send(std::string bytes) override {
    v1::CoordinatorBatch batch;
    REQUIRE(batch.ParseFromString(bytes));
    for (const v1::CoordinatorMessage& m : batch.messages()) requests.push_back(m.read_logs());
    return absl::OkStatus();
  }
  void Close() override {}
  std::deque<v1::ReadLogs> requests;
};

struct Cluster {
  ManualClock clock;
  runtime::ManualExecutor control{&clock};
  log::Logger logger{[] {
    log::Options options;
    options.level = log::Level::kError;
    return options;
  }()};
  SlowStore store;
  DurabilityGate gate{&store, 1 << 20, [] { return true; }};
  SessionTable sessions{{&control, &logger, &gate, [](std::uint64_t) {}, [] {}}};
  Membership membership{MembershipOptions()};
  LogReads reads{{&sessions, &membership, &logger}, {3, std::chrono::seconds(5)}};
  std::map<TaskId, std::shared_ptr<Asked>> streams;
  std::uint64_t next = 1;

  TaskId Add(const std::string& identity) {
    TaskHello hello;
    hello.identity = identity;
    hello.process_uid = next;
    const RegisterVerdict verdict = membership.Register(clock.Now(), hello);
    REQUIRE(verdict.accepted);
    Session session;
    session.number = next++;
    session.stream = streams[verdict.task] = std::make_shared<Asked>();
    const std::uint64_t number = session.number;
    sessions.Open(std::move(session));
    sessions.Register(*sessions.Find(number), verdict.task, identity);
    return verdict.task;
  }
  // Begins to read log lines of these tasks, and not of the coordinator itself.
  std::shared_ptr<Reply> Begin(std::uint64_t number, v1::ReadTaskLogsRequest request,
                               const std::vector<std::string>& tasks) {
    for (const std::string& task : tasks) request.add_tasks(task);
    auto answer = std::make_shared<Reply>();
    reads.Begin(clock.Now(), number, request, answer);
    control.RunReady();
    return answer;
  }
  static v1::LogLines Lines(std::uint64_t number, const std::vector<std::int64_t>& wall_ms,
                            bool end = true) {
    v1::LogLines lines;
    lines.set_request_id(number);
    for (const std::int64_t ms : wall_ms) {
      lines.add_lines()->set_wall_ms(ms);
      lines.mutable_lines(lines.lines_size() - 1)->set_text(std::to_string(ms));
    }
    lines.set_end(end);
    return lines;
  }
};

}  // namespace

TEST_CASE(
    "the lines of several tasks are returned in order of wall time, after all have answered") {
  Cluster c;
  const TaskId a = c.Add("a"), b = c.Add("b");
  const auto answer = c.Begin(7, {}, {"worker/a", "worker/b"});
  REQUIRE(c.streams[a]->requests.size() == 1);
  CHECK(c.streams[a]->requests.front().request_id() == 7);
  c.reads.OnLines(a, Cluster::Lines(7, {10, 30}));
  CHECK_FALSE(answer->answered);
  c.reads.OnLines(a, Cluster::Lines(7, {99}));  // the task has already finished its answer
  c.reads.OnLines(b, Cluster::Lines(8, {99}));  // an answer to another read
  c.reads.OnLines(b, Cluster::Lines(7, {20}));
  REQUIRE(answer->answered);
  CHECK(answer->Texts() == "worker/a:10 worker/b:20 worker/a:30 ");
}

TEST_CASE("a reader that follows with cursors loses and repeats no line") {
  Cluster c;
  const TaskId a = c.Add("a");
  const auto first = c.Begin(1, {}, {"worker/a"});
  c.reads.OnLines(a, Cluster::Lines(1, {10, 20}));
  REQUIRE(first->answered);
  v1::ReadTaskLogsRequest request;
  *request.mutable_cursors() = first->lines.cursors();
  const auto second = c.Begin(2, request, {"worker/a"});
  CHECK(c.streams[a]->requests.back().since_wall_ms() == 20);
  // Includes a new line of the same millisecond.
  c.reads.OnLines(a, Cluster::Lines(2, {20, 20, 30}));
  REQUIRE(second->answered);
  CHECK(second->Texts() == "worker/a:20 worker/a:30 ");
}

TEST_CASE("an answer holds the newest lines up to its limit, and each task's part is limited") {
  Cluster c;
  const TaskId a = c.Add("a");
  v1::ReadTaskLogsRequest two;
  two.set_lines_max(2);
  const auto answer = c.Begin(1, two, {"worker/a"});
  c.reads.OnLines(a, Cluster::Lines(1, {1, 2, 3, 4}));
  REQUIRE(answer->answered);
  CHECK(answer->Texts() == "worker/a:2 worker/a:3 ");
}

TEST_CASE("ended and silent tasks are not awaited, and unknown tasks are an error") {
  Cluster c;
  const TaskId a = c.Add("a");
  c.Add("b");
  const auto answer = c.Begin(1, {}, {"worker/a", "worker/b"});
  c.reads.OnSessionClosed(a);
  c.reads.Check(c.clock.Now());
  CHECK_FALSE(answer->answered);
  c.clock.Advance(std::chrono::seconds(5));
  c.reads.Check(c.clock.Now());
  CHECK(answer->answered);
  CHECK(answer->status.ok());
  CHECK(absl::IsNotFound(c.Begin(2, {}, {"worker/c"})->status));
  CHECK(absl::IsNotFound(c.Begin(3, {}, {"worker"})->status));
  const auto stopped = c.Begin(4, {}, {"worker/a"});
  c.reads.Stop();
  CHECK(absl::IsUnavailable(stopped->status));
}

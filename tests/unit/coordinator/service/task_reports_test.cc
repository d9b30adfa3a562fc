// Tests the records of what tasks report about themselves.
#include "coordinator/service/task_reports.h"

#include <catch2/catch.hpp>

#include <string>

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

struct Stage {
  Membership membership{MembershipOptions()};
  TaskReports reports{&membership};
  TaskId Add(std::uint64_t process) {
    TaskHello hello;
    hello.identity = "a";
    hello.process_uid = process;
    return membership.Register(MonoTime{0}, hello).task;
  }
};

}  // namespace

TEST_CASE("a report keeps the Hello without its shards and attempts, and limits the texts") {
  Stage stage;
  const TaskId task = stage.Add(1);
  v1::Hello hello;
  hello.set_build_id("build");
  hello.add_shards();
  hello.add_attempts();
  stage.reports.Enter(task, hello, 700);
  v1::Heartbeat heartbeat;
  heartbeat.mutable_worker()->set_state(std::string(1000, 's'));
  heartbeat.mutable_worker()->set_waiting_for(std::string(5000, 'w'));
  heartbeat.mutable_worker()->set_steps(3);
  stage.reports.OnHeartbeat(task, heartbeat);
  const TaskReport* report = stage.reports.Find(task);
  REQUIRE(report != nullptr);
  CHECK(report->hello.build_id() == "build");
  CHECK(report->hello.shards_size() + report->hello.attempts_size() == 0);
  CHECK(report->since_ms == 700);
  CHECK(report->worker.steps() == 3);
  CHECK(report->worker.state().size() <= 64);
  CHECK(report->worker.waiting_for().size() <= kTaskTextBytesMax);
}

TEST_CASE("a new recommendation to leave the machine is reported once, and is limited") {
  Stage stage;
  const TaskId task = stage.Add(1);
  stage.reports.Enter(task, v1::Hello(), 0);
  v1::Heartbeat heartbeat;
  CHECK_FALSE(stage.reports.OnHeartbeat(task, heartbeat));
  for (const std::string& text : {std::string("at 10:00"), std::string(5000, 'r')}) {
    heartbeat.set_recommendation(text);
    CHECK(stage.reports.OnHeartbeat(task, heartbeat));
    CHECK_FALSE(stage.reports.OnHeartbeat(task, heartbeat));
    CHECK(stage.reports.Find(task)->recommendation.substr(0, 8) == text.substr(0, 8));
  }
  CHECK(stage.reports.Find(task)->recommendation.size() <= kTaskTextBytesMax);
  // A heartbeat without a recommendation, such as that of a new process, removes the
  // recommendation.
  CHECK_FALSE(stage.reports.OnHeartbeat(task, v1::Heartbeat()));
  CHECK(stage.reports.Find(task)->recommendation.empty());
}

TEST_CASE("a heartbeat or a notice of an unknown task is ignored") {
  Stage stage;
  stage.reports.OnHeartbeat(TaskId(7), v1::Heartbeat());
  stage.reports.SetLeaving(TaskId(7), "SIGTERM");
  CHECK(stage.reports.Find(TaskId(7)) == nullptr);
}

TEST_CASE("a tick records since when a task has its state, and removes unlisted tasks") {
  Stage stage;
  const TaskId task = stage.Add(1);
  stage.reports.Enter(task, v1::Hello(), 100);
  stage.reports.Tick(200);
  CHECK(stage.reports.Find(task)->since_ms == 100);  // the task is still alive, as before
  stage.membership.StreamClosed(MonoTime{0}, task);
  stage.reports.Tick(300);
  CHECK(stage.reports.Find(task)->since_ms == 300);
  stage.reports.Tick(400);
  CHECK(stage.reports.Find(task)->since_ms == 300);
  stage.Add(2);  // another registration has this identity now
  stage.reports.Tick(500);
  CHECK(stage.reports.Find(task) == nullptr);
}

// Tests the effects of the end of a session and of the end of a task.
#include "coordinator/service/task_ends.h"

#include "service_stage.h"

using namespace evergrad;
using namespace evergrad::coordinator;

TEST_CASE("a rejection is the last message of its session, and a repeat changes nothing") {
  ServiceStage stage;
  const std::uint64_t number = stage.Connect().number;
  RegisterVerdict::Holder holder;
  holder.process_uid = 4;
  holder.free_identity = "2";
  stage.ends.Reject(number, "identity_taken", "taken", false, std::chrono::milliseconds(30),
                    holder);
  stage.ends.Reject(number, "limit", "again", true, std::chrono::milliseconds(0));
  stage.ends.Close(number);
  stage.Run();
  CHECK(stage.stream->Kinds() == "rejected");
  CHECK(stage.stream->rejected().kind() == "identity_taken");
  CHECK(stage.stream->rejected().retry_after_ms() == 30);
  CHECK(stage.stream->rejected().holder_process() == 4);
  CHECK(stage.stream->rejected().free_identity() == "2");
  CHECK(stage.stream->closed);
  CHECK(stage.closed == 1);
  CHECK(stage.sessions.size() == 0);
}

TEST_CASE("a task whose session closes is suspected, and its drain is forgotten") {
  ServiceStage stage;
  const Session& session = stage.Register(ServiceStage::HelloOf(v1::ROLE_PS_SERVER, "0", 1));
  const TaskId task = session.task;
  stage.drains.Begin(task);
  stage.ends.Close(session.number);
  CHECK(stage.membership.Find(task)->state == TaskState::kSuspected);
  CHECK_FALSE(stage.drains.Waits(task));
}

TEST_CASE("a coordinator that stops tells membership nothing about the sessions that it closes") {
  ServiceStage stage;
  const Session& session = stage.Register(ServiceStage::HelloOf(v1::ROLE_WORKER, "0", 1));
  const TaskId task = session.task;
  stage.life.stopped = true;
  stage.ends.Close(session.number);
  CHECK(stage.membership.Find(task)->state == TaskState::kAlive);
}

TEST_CASE("a worker whose lease expires leaves its job, and its open session is rejected") {
  ServiceStage stage;
  Job* const job = stage.Submit(11, "a");
  stage.supervisor.StartNext();
  const TaskId task = stage.Register(ServiceStage::HelloOf(v1::ROLE_WORKER, "0", 1)).task;
  REQUIRE(stage.parts.JobOf(task) == job);
  stage.ends.Apply(
      {{MembershipChange::Kind::kGone, task, Role::kWorker, "0", "silent", false, true}});
  CHECK(stage.parts.JobOf(task) == nullptr);
  CHECK(stage.metrics.workers_gone.value() == 1);
  CHECK(stage.stream->rejected().kind() == "not_active");
  CHECK(stage.stream->closed);
}

TEST_CASE("a lost server is counted, and a session that stays open is not rejected") {
  ServiceStage stage;
  const TaskId task = stage.Register(ServiceStage::HelloOf(v1::ROLE_PS_SERVER, "0", 1)).task;
  stage.ends.Apply(
      {{MembershipChange::Kind::kLost, task, Role::kPsServer, "0", "lost", false, false}});
  CHECK(stage.metrics.servers_lost.value() == 1);
  CHECK_FALSE(stage.stream->closed);
}

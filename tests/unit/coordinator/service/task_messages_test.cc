// Tests how the coordinator handles the messages of registered tasks.
#include "coordinator/service/task_messages.h"

#include "service_stage.h"

using namespace evergrad;
using namespace evergrad::coordinator;

TEST_CASE("a worker's result for a job that it does not serve is superseded") {
  ServiceStage stage;
  TaskMessages messages{stage.parts};
  Session& worker = stage.Register(ServiceStage::HelloOf(v1::ROLE_WORKER, "0", 1));
  v1::TaskMessage message;
  message.mutable_done()->set_job_uid(77);
  message.mutable_done()->set_closure(5);
  message.mutable_done()->mutable_attempt()->set_n(3);
  REQUIRE(messages.OnMessage(worker, message).ok());
  stage.Run();
  CHECK(stage.stream->Kinds() == "registered done_answer");
  const v1::DoneAnswer& answer = stage.stream->down.back().done_answer();
  CHECK(answer.superseded());
  CHECK(answer.job_uid() == 77);
  CHECK(answer.closure() == 5);
  CHECK(answer.attempt().n() == 3);
}

TEST_CASE("a server drops a shard that was assigned for a job that does not run") {
  ServiceStage stage;
  TaskMessages messages{stage.parts};
  Session& server = stage.Register(ServiceStage::HelloOf(v1::ROLE_PS_SERVER, "0", 1));
  v1::TaskMessage message;
  message.mutable_assigned()->set_job_uid(77);
  message.mutable_assigned()->set_shard(2);
  REQUIRE(messages.OnMessage(server, message).ok());
  stage.Run();
  // No Ready, because the server did not accept the shard.
  CHECK(stage.stream->Kinds() == "registered");
  message.mutable_assigned()->set_ok(true);
  REQUIRE(messages.OnMessage(server, message).ok());
  stage.Run();
  CHECK(stage.stream->Kinds() == "registered drop");
  CHECK(stage.stream->down.back().drop().shard() == 2);
}

TEST_CASE("malformed messages of a registered task are refused") {
  ServiceStage stage;
  TaskMessages messages{stage.parts};
  Session& server = stage.Register(ServiceStage::HelloOf(v1::ROLE_PS_SERVER, "0", 1));
  v1::TaskMessage hello, file;
  hello.mutable_hello();
  file.mutable_run_file();
  CHECK(absl::IsInvalidArgument(messages.OnMessage(server, hello)));
  CHECK(absl::IsInvalidArgument(messages.OnMessage(server, file)));
  CHECK(absl::IsInvalidArgument(messages.OnMessage(server, v1::TaskMessage())));
}

TEST_CASE("a server that leaves while no job runs may exit at once") {
  ServiceStage stage;
  TaskMessages messages{stage.parts};
  Session& server = stage.Register(ServiceStage::HelloOf(v1::ROLE_PS_SERVER, "0", 1));
  v1::TaskMessage message;
  message.mutable_leaving()->set_reason("SIGTERM");
  message.mutable_leaving()->set_drains(true);
  REQUIRE(messages.OnMessage(server, message).ok());
  stage.Run();
  CHECK(stage.stream->Kinds() == "registered drained");
  CHECK(stage.membership.Find(server.task)->leaving);
  CHECK(stage.reports.Find(server.task)->leaving == "SIGTERM");
}

TEST_CASE("the first batch after the Hello ends the time without work") {
  ServiceStage stage;
  TaskMessages messages{stage.parts};
  Session& worker = stage.Register(ServiceStage::HelloOf(v1::ROLE_WORKER, "0", 1));
  CHECK_FALSE(worker.spoke);
  stage.clock.Advance(std::chrono::milliseconds(40));
  messages.Heard(worker);
  CHECK(worker.spoke);
  CHECK(stage.membership.Find(worker.task)->last_heard == std::chrono::milliseconds(40));
}

TEST_CASE("there is nothing to commit while no job has an open turn") {
  ServiceStage stage;
  stage.Submit(11, "a");
  TaskMessages messages{stage.parts};
  const std::uint64_t accepted = stage.store.accepted();
  CHECK(messages.CommitTurns());
  CHECK(stage.store.accepted() == accepted);
}

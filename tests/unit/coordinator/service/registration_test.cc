// Tests how a Hello becomes a registered task.
#include "coordinator/service/registration.h"

#include "service_stage.h"

using namespace evergrad;
using namespace evergrad::coordinator;

TEST_CASE("a registered task is told after Registered which of its shards and attempts are void") {
  ServiceStage stage;
  v1::Hello hello = ServiceStage::HelloOf(v1::ROLE_WORKER, "0", 1);
  v1::HeldAttempt& held = *hello.add_attempts();
  held.set_job_uid(77);
  held.set_closure(4);
  held.mutable_attempt()->set_n(2);
  stage.Register(hello);
  CHECK(stage.stream->Kinds() == "registered done_answer job_ended");
  CHECK(stage.stream->down[0].registered().life_id() == 9);
  CHECK(stage.stream->down[0].registered().registration().term() == 1);
  CHECK(stage.stream->down[1].done_answer().superseded());
  CHECK(stage.stream->down[2].job_ended().job_uid() == 77);
  CHECK(stage.stream->down[2].job_ended().state() == "UNKNOWN");

  v1::Hello server = ServiceStage::HelloOf(v1::ROLE_PS_SERVER, "0", 2);
  for (const std::uint32_t shard : {3u, 1u}) {
    server.add_shards()->set_job_uid(77);
    server.mutable_shards(server.shards_size() - 1)->set_shard(shard);
  }
  stage.Register(server);
  CHECK(stage.stream->Kinds() == "registered drop drop job_ended");
  CHECK(stage.stream->down[1].drop().shard() == 3);
}

TEST_CASE("the former session of an identity ends before the new task is told") {
  ServiceStage stage;
  const TaskId old = stage.Register(ServiceStage::HelloOf(v1::ROLE_WORKER, "a", 1)).task;
  const auto former = stage.stream;
  const TaskId task = stage.Register(ServiceStage::HelloOf(v1::ROLE_WORKER, "a", 2)).task;
  CHECK(former->rejected().kind() == "replaced");
  CHECK(former->rejected().exit());
  CHECK(former->closed);
  CHECK(stage.reports.Find(old) == nullptr);
  CHECK(stage.reports.Find(task) != nullptr);
  CHECK(stage.metrics.registered.value() == 2);
  // The process opens another session. The former session must end, but the process must not exit.
  const auto second = stage.stream;
  stage.Register(ServiceStage::HelloOf(v1::ROLE_WORKER, "a", 2));
  CHECK(second->rejected().kind() == "replaced");
  CHECK_FALSE(second->rejected().exit());
}

TEST_CASE("a certificate of another task is refused permanently, and names a task without a name") {
  ServiceStage stage;
  Session& session = stage.Connect();
  session.peer.certificate_task = "worker/7";
  stage.admission.OnHello(session, ServiceStage::HelloOf(v1::ROLE_WORKER, "6", 1));
  stage.Run();
  CHECK(stage.stream->rejected().kind() == "certificate");
  CHECK(stage.stream->rejected().exit());
  Session& named = stage.Connect();
  named.peer.certificate_task = "worker/7";
  stage.admission.OnHello(named, ServiceStage::HelloOf(v1::ROLE_WORKER, "", 1));
  CHECK(named.identity == "7");
}

TEST_CASE("a worker with a notice from a former session leaves, and awaits no shards") {
  ServiceStage stage;
  v1::Hello hello = ServiceStage::HelloOf(v1::ROLE_WORKER, "7", 1);
  hello.set_leaving("SIGTERM");
  const Session& session = stage.Register(hello);
  CHECK(stage.reports.Find(session.task)->leaving == "SIGTERM");
  CHECK(stage.membership.Find(session.task)->leaving);
  CHECK_FALSE(stage.drains.Waits(session.task));  // a worker has no shards to move
}

TEST_CASE("a server with a notice from a former session waits for Drained again") {
  ServiceStage stage;
  v1::Hello hello = ServiceStage::HelloOf(v1::ROLE_PS_SERVER, "0", 1);
  hello.set_leaving("SIGTERM");
  stage.Register(hello);
  CHECK(stage.stream->Kinds() == "registered drained");
}

TEST_CASE("a server is told of each running job, and a worker of one") {
  ServiceStage stage;
  stage.Submit(11, "a");
  stage.Submit(12, "b");
  stage.supervisor.StartNext();
  stage.Register(ServiceStage::HelloOf(v1::ROLE_PS_SERVER, "0", 1));
  CHECK(stage.stream->Kinds() == "registered job");
  CHECK(stage.stream->down[0].registered().job().job_uid() == 11);
  CHECK(stage.stream->down[1].job().job_uid() == 12);
  const TaskId worker = stage.Register(ServiceStage::HelloOf(v1::ROLE_WORKER, "0", 2)).task;
  CHECK(stage.stream->Kinds() == "registered");
  REQUIRE(stage.parts.JobOf(worker) != nullptr);
  CHECK(stage.stream->down[0].registered().job().job_uid() ==
        stage.parts.JobOf(worker)->uid().value());
}

TEST_CASE("a returning worker serves its former job") {
  ServiceStage stage;
  Job* const a = stage.Submit(11, "a");
  stage.supervisor.StartNext();
  const TaskId first = stage.Register(ServiceStage::HelloOf(v1::ROLE_WORKER, "0", 1)).task;
  REQUIRE(stage.parts.JobOf(first) == a);
  stage.Submit(12, "b");
  stage.supervisor.StartNext();
  const TaskId again = stage.Register(ServiceStage::HelloOf(v1::ROLE_WORKER, "0", 1)).task;
  CHECK(again != first);
  CHECK(stage.parts.JobOf(again) == a);
  CHECK(stage.parts.JobOf(first) == nullptr);
}

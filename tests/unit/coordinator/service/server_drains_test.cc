// Tests that a server that leaves gets the message Drained when its shards have been moved.
#include "coordinator/service/server_drains.h"

#include "service_stage.h"

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

v1::Drained Of(const Job& job, const std::string& cannot = "") {
  v1::Drained drained;
  drained.set_job_uid(job.uid().value());
  drained.set_cannot(cannot);
  return drained;
}
// Returns the field `cannot` of each Drained message that the task has received.
std::vector<std::string> Said(ServiceStage& stage, const TaskStream& stream) {
  stage.Run();
  std::vector<std::string> said;
  for (const v1::CoordinatorMessage& message : stream.down) {
    if (message.has_drained()) said.push_back(message.drained().cannot());
  }
  return said;
}

}  // namespace

TEST_CASE("a leaving server is told once, after each running job has moved its shards") {
  ServiceStage stage;
  const TaskId server = stage.Register(ServiceStage::HelloOf(v1::ROLE_PS_SERVER, "0", 1)).task;
  Job* const a = stage.Submit(11, "a");
  Job* const b = stage.Submit(12, "b");
  stage.supervisor.StartNext();
  REQUIRE(stage.jobs.Running().size() == 2);
  ServerDrains drains{&stage.jobs, &stage.sessions};
  drains.Begin(server);
  drains.Check(server);
  drains.OnDrained(server, Of(*a));
  CHECK(Said(stage, *stage.stream).empty());
  drains.OnDrained(server, Of(*b, "no other server"));
  drains.CheckAll();
  CHECK(Said(stage, *stage.stream) == std::vector<std::string>{"no other server"});
  CHECK(drains.Waits(server));
}

TEST_CASE("an ended job is not awaited") {
  ServiceStage stage;
  const TaskId server = stage.Register(ServiceStage::HelloOf(v1::ROLE_PS_SERVER, "0", 1)).task;
  Job* const job = stage.Submit(11, "a");
  stage.supervisor.StartNext();
  ServerDrains drains{&stage.jobs, &stage.sessions};
  drains.Begin(server);
  drains.CheckAll();
  CHECK(Said(stage, *stage.stream).empty());
  stage.End(*job);
  drains.CheckAll();
  CHECK(Said(stage, *stage.stream) == std::vector<std::string>{""});
}

TEST_CASE("a job's report counts even if it arrives before the server's notice") {
  ServiceStage stage;
  const TaskId server = stage.Register(ServiceStage::HelloOf(v1::ROLE_PS_SERVER, "0", 1)).task;
  Job* const job = stage.Submit(11, "a");
  stage.supervisor.StartNext();
  ServerDrains drains{&stage.jobs, &stage.sessions};
  drains.OnDrained(server, Of(*job));
  CHECK_FALSE(drains.Waits(server));
  CHECK(Said(stage, *stage.stream).empty());
  drains.Begin(server);
  drains.Check(server);
  CHECK(Said(stage, *stage.stream).size() == 1);
  drains.Remove(server);
  CHECK_FALSE(drains.Waits(server));
}

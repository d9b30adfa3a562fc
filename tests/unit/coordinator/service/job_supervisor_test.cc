// Tests that queued jobs begin, that the tasks are introduced to them, and that ended jobs are
// forgotten.
#include "coordinator/service/job_supervisor.h"

#include "service_stage.h"
#include "slow_store.h"

using namespace evergrad;
using namespace evergrad::coordinator;

TEST_CASE("no job begins before the end of the window, and then as many as permitted begin") {
  ServiceStage stage;
  stage.life.window_open = true;
  for (const std::uint64_t uid : {11, 12, 13}) stage.Submit(uid, absl::StrCat("job", uid));
  stage.supervisor.StartNext();
  CHECK(stage.jobs.running() == 0);
  stage.life.window_open = false;
  stage.supervisor.StartNext();
  CHECK(stage.jobs.running() == 2);
  CHECK(stage.jobs.queued() == 1);
}

TEST_CASE("earlier registered tasks are introduced to a job that begins") {
  ServiceStage stage;
  stage.Register(ServiceStage::HelloOf(v1::ROLE_PS_SERVER, "0", 1));
  const auto server = stage.stream;
  const TaskId worker = stage.Register(ServiceStage::HelloOf(v1::ROLE_WORKER, "0", 2)).task;
  const auto stream = stage.stream;
  Job* const job = stage.Submit(11, "a");
  stage.supervisor.StartNext();
  stage.Run();
  CHECK(server->Kinds() == "registered job");
  CHECK(stream->Kinds() == "registered job");
  CHECK(stage.parts.JobOf(worker) == job);
}

TEST_CASE(
    "the changes of one turn are handled once, afterwards, and none after the coordinator "
    "stopped") {
  ServiceStage stage;
  stage.supervisor.JobChanged();
  stage.supervisor.JobChanged();
  CHECK(stage.changes == 0);
  stage.Run();
  CHECK(stage.changes == 1);
  stage.supervisor.JobChanged();
  stage.life.stopped = true;
  stage.Run();
  CHECK(stage.changes == 1);
}

TEST_CASE("the end of a job begins the next one, and the oldest ended job is forgotten") {
  ServiceStage stage;
  Job* const a = stage.Submit(11, "a");
  Job* const b = stage.Submit(12, "b");
  Job* const c = stage.Submit(13, "c");
  stage.supervisor.StartNext();
  CHECK_FALSE(c->started());
  stage.End(*a);
  CHECK(c->started());
  CHECK(stage.metrics.ended.value() == 1);
  CHECK(stage.jobs.Contains(JobUid(11)));  // the newest ended job is not forgotten
  stage.End(*b);
  CHECK_FALSE(stage.jobs.Contains(JobUid(11)));
  CHECK(stage.jobs.Contains(JobUid(12)));
  CHECK(stage.metrics.ended.value() == 2);
}

TEST_CASE("no job begins while the store's folder is missing") {
  ServiceStage stage;
  SlowStore store;
  StoreWatch watch{&store, &stage.control, &stage.logger};
  ServiceParts parts = stage.parts;
  parts.store_watch = &watch;
  JobSupervisor supervisor{parts, [] {}};
  store.place_now = absl::NotFoundError("moved");
  supervisor.CheckStorePlace();
  stage.Submit(11, "a");
  supervisor.StartNext();
  CHECK(stage.jobs.running() == 0);
  store.place_now = absl::OkStatus();
  supervisor.CheckStorePlace();
  CHECK(stage.jobs.running() == 1);
}

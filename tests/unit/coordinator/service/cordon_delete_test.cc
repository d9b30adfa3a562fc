// Tests the calls of `psctl task cordon` and `psctl job delete` over real sessions.
#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "common/fs/file.h"
#include "task_fixture.h"

namespace evergrad::coordinator {
namespace {

using Catch::Contains;

absl::Status Cordon(TestCluster& c, const std::string& task, bool on) {
  v1::CordonTaskRequest request;
  request.set_task(task);
  request.set_on(on);
  return c.Call<v1::CordonTaskResponse>(request).status();
}

bool IsListedAsCordoned(TestCluster& c, v1::Role role) {
  const auto tasks = c.Call<v1::ListTasksResponse>(v1::ListTasksRequest());
  REQUIRE(tasks.ok());
  for (const v1::TaskRow& row : tasks->tasks())
    if (row.role() == role) return row.cordoned();
  return false;
}

TEST_CASE(
    "a cordoned worker gets no work, and a cordoned server no shards, until the cordon ends") {
  TestCluster c;
  REQUIRE(c.AddWorker("0", 1).Registered());
  REQUIRE(c.AddServer("0", 2).Registered());
  REQUIRE(Cordon(c, "worker/0", true).ok());
  REQUIRE(Cordon(c, "ps_server/0", true).ok());
  CHECK(IsListedAsCordoned(c, v1::ROLE_WORKER));
  CHECK(IsListedAsCordoned(c, v1::ROLE_PS_SERVER));
  REQUIRE(c.Submit(TestCluster::CountingYaml("job")).ok());
  REQUIRE(c.WaitJob("job", [](const v1::JobStatus& s) { return !s.waiting_for().empty(); }).ok());
  REQUIRE(Cordon(c, "worker/0", false).ok());
  REQUIRE(c.WaitJob("job", [](const v1::JobStatus& s) {
             return s.waiting_for() == "servers: all are cordoned (psctl task uncordon)";
           }).ok());
  REQUIRE(Cordon(c, "ps_server/0", false).ok());
  CHECK(c.WaitState("job", "SUCCEEDED").ok());
  CHECK_FALSE(IsListedAsCordoned(c, v1::ROLE_WORKER));
}

TEST_CASE("a task keeps its cordon for the next session, and only workers and servers have one") {
  TestCluster c;
  TestTask& server = c.Add(TestCluster::HelloOf(v1::ROLE_PS_SERVER, "0", 1));
  REQUIRE(server.Registered());
  REQUIRE(Cordon(c, "ps_server/0", true).ok());
  CHECK(server.Wait(
      [](const v1::CoordinatorMessage& m) { return m.has_cordon() && m.cordon().on(); }));
  v1::Hello hello = TestCluster::HelloOf(v1::ROLE_WORKER, "a", 2);
  hello.set_cordoned(true);
  REQUIRE(c.Add(hello).Registered());
  CHECK(IsListedAsCordoned(c, v1::ROLE_WORKER));
  CHECK(Cordon(c, "ps_server/7", true).code() == absl::StatusCode::kNotFound);
  for (const char* name : {"", "coordinator/0", "worker", "worker/", "what/0"}) {
    INFO(name);
    CHECK(Cordon(c, name, true).code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("a cordon that did not arrive is sent again in the next session of the process") {
  TestCluster c;
  TestTask& first = c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "a", 1));
  REQUIRE(first.Registered());
  REQUIRE(Cordon(c, "worker/a", true).ok());
  // The process registers again and has not received the message.
  TestTask& again = c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "a", 1));
  REQUIRE(again.Registered());
  CHECK(again.Wait(
      [](const v1::CoordinatorMessage& m) { return m.has_cordon() && m.cordon().on(); }));
  CHECK(IsListedAsCordoned(c, v1::ROLE_WORKER));
  // Another process of this name begins without a cordon.
  REQUIRE(c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "a", 2)).Registered());
  CHECK_FALSE(IsListedAsCordoned(c, v1::ROLE_WORKER));
}

TEST_CASE("a uid names its job, whatever the names of other jobs are") {
  TestCluster c;
  const auto submitted = c.Submit(TestCluster::CountingYaml("job"));
  REQUIRE(submitted.ok());
  const std::string uid = JobUidString(JobUid(submitted->job_uid()));
  const absl::Status refused = c.Submit(TestCluster::CountingYaml(uid)).status();
  CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(refused.message()), Contains("like the uid of a job"));
}

TEST_CASE("an ended job is deleted, with its files if asked, and a living job is not") {
  TestCluster c;
  const auto remove = [&](const std::string& job, bool files) {
    v1::DeleteJobRequest request;
    request.set_job(job);
    request.set_files(files);
    return c.Call<v1::DeleteJobResponse>(request);
  };
  REQUIRE(c.Submit(TestCluster::CountingYaml("living")).ok());
  const absl::Status refused = remove("living", true).status();
  CHECK(refused.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(refused.message()), Contains("psctl job cancel"));
  c.AddWorker("0", 1);
  c.AddServer("0", 2);
  REQUIRE(c.WaitState("living", "SUCCEEDED").ok());
  REQUIRE(c.Submit(TestCluster::CountingYaml("second")).ok());
  const auto second = c.WaitState("second", "SUCCEEDED");
  REQUIRE(second.ok());

  const auto first = remove("living", false);
  REQUIRE(first.ok());
  CHECK(fs::Exists(first->runs_folder() + "/result.json"));
  REQUIRE(remove("second", true).ok());
  CHECK_FALSE(fs::Exists(second->runs_folder()));
  const auto jobs = c.Call<v1::ListJobsResponse>(v1::ListJobsRequest());
  REQUIRE(jobs.ok());
  CHECK(jobs->jobs().empty());
  CHECK(remove("second", true).status().code() == absl::StatusCode::kNotFound);
  CHECK(remove("", true).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a repeated submission with one request_id makes one job") {
  TestCluster c;
  v1::SubmitJobRequest request;
  request.set_yaml(TestCluster::CountingYaml("job"));
  request.set_request_id("TrainingJob/7");
  const auto first = c.Call<v1::SubmitJobResponse>(request);
  REQUIRE(first.ok());
  const auto again = c.Call<v1::SubmitJobResponse>(request);
  REQUIRE(again.ok());
  CHECK(again->job_uid() == first->job_uid());
  CHECK(again->runs_folder() == first->runs_folder());
  const auto status = c.WaitJob("job", [](const v1::JobStatus&) { return true; });
  CHECK(status->request_id() == "TrainingJob/7");
  request.set_request_id("TrainingJob/8");
  CHECK(c.Call<v1::SubmitJobResponse>(request).status().code() ==
        absl::StatusCode::kAlreadyExists);  // the name belongs to a living job
  request.set_request_id(std::string(257, 'x'));
  CHECK(c.Call<v1::SubmitJobResponse>(request).status().code() ==
        absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace evergrad::coordinator

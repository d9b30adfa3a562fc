// Tests the coordinator from the outside, as its tasks and psctl see it: sessions, registrations
// and control calls over the in-process transport.
#include <catch2/catch.hpp>

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "certified_transport.h"
#include "common/base/status.h"
#include "common/fs/file.h"
#include "common/runtime/executor.h"
#include "evergrad/v1/journal.pb.h"
#include "task_fixture.h"

using namespace evergrad;
using namespace evergrad::coordinator;
using Catch::Matchers::Contains;

TEST_CASE("a job runs to its end over real sessions and leaves its files") {
  TestCluster c;
  c.AddWorker("0", 1);
  c.AddWorker("1", 2);
  c.AddServer("0", 3);
  c.AddServer("1", 4);
  auto submitted = c.Submit(TestCluster::CountingYaml("count"));
  REQUIRE(submitted.ok());
  CHECK(submitted->state() == "STARTING");
  auto status = c.WaitState("count", "SUCCEEDED");
  REQUIRE(status.ok());
  CHECK(status->closures_succeeded() == 16);
  CHECK(status->closures_total() == 16);
  CHECK(status->steps_done() == 32);
  CHECK(status->epoch_rows(1).counting_sum() == 64);
  CHECK_FALSE(status->result_json().empty());
  CHECK(status->eta_seconds() == 0);
  for (const char* name : {"job.yaml", "metrics.jsonl", "result.json", "report.html"})
    CHECK(fs::Exists(status->runs_folder() + "/" + name));
  auto result = fs::ReadFile(status->runs_folder() + "/result.json", 1 << 20);
  REQUIRE(result.ok());
  CHECK(*result == status->result_json());

  // The newest ended job must still show the digests of its variables. A digest is a sum over the
  // shards of the variable.
  auto variables = c.Call<v1::ListVariablesResponse>(v1::ListVariablesRequest());
  REQUIRE(variables.ok());
  REQUIRE(variables->variables_size() == 1);
  CHECK(variables->variables(0).complete());
  CHECK(variables->variables(0).digest() == 0b1111);
  CHECK(variables->variables(0).shards_size() == 4);
  CHECK(variables->variables(0).servers_size() == 4);

  CHECK(variables->variables(0).variable_spec().optimizer().type() == "counting");
  // A request may name one variable. For an unknown name the error lists the names that exist.
  v1::ListVariablesRequest one;
  one.set_variable(variables->variables(0).name());
  auto found = c.Call<v1::ListVariablesResponse>(one);
  REQUIRE(found.ok());
  CHECK(found->variables_size() == 1);
  one.set_variable("cuonter");
  const auto missing = c.Call<v1::ListVariablesResponse>(one);
  CHECK(missing.status().code() == absl::StatusCode::kNotFound);
  CHECK_THAT(std::string(missing.status().message()),
             Catch::Contains("no such variable: variable=cuonter job=count; it has " +
                             variables->variables(0).name()));

  auto jobs = c.Call<v1::ListJobsResponse>(v1::ListJobsRequest());
  REQUIRE(jobs.ok());
  REQUIRE(jobs->jobs_size() == 1);
  CHECK(jobs->jobs(0).name() == "count");
}

TEST_CASE("jobs queue and run one at a time, and a queued job can be cancelled") {
  TestCluster c;
  CHECK(c.WaitMetric("evergrad_coordinator_workers_wanted", "0"));
  REQUIRE(c.Submit(TestCluster::CountingYaml("first")).ok());
  auto second = c.Submit(TestCluster::CountingYaml("second"));
  auto third = c.Submit(TestCluster::CountingYaml("third"));
  REQUIRE(second.ok());
  REQUIRE(third.ok());
  CHECK(second->state() == "QUEUED");
  auto waiting =
      c.WaitJob("first", [](const v1::JobStatus& s) { return !s.waiting_for().empty(); });
  REQUIRE(waiting.ok());
  CHECK_THAT(waiting->waiting_for(), Contains("workers"));
  CHECK(c.WaitMetric("evergrad_coordinator_workers_wanted", "1"));
  v1::CancelJobRequest cancel;
  cancel.set_job("third");
  REQUIRE(c.Call<v1::CancelJobResponse>(cancel).ok());
  REQUIRE(c.WaitState("third", "CANCELLED").ok());
  c.AddWorker("0", 1);
  c.AddServer("0", 2);
  CHECK(c.WaitState("first", "SUCCEEDED").ok());
  CHECK(c.WaitState("second", "SUCCEEDED").ok());
  CHECK(c.WaitMetric("evergrad_coordinator_workers_wanted", "0"));
}

// Returns the answer of a worker that cannot do what the grant requires.
v1::TaskMessage Cannot(const v1::Grant& grant) {
  v1::TaskMessage message;
  v1::Failed* failed = message.mutable_failed();
  failed->set_job_uid(grant.job_uid());
  failed->set_closure(grant.closure());
  *failed->mutable_attempt() = grant.attempt();
  failed->set_kind(grant.kind());
  failed->set_all_targets(grant.all_targets());
  failed->set_user_error(true);
  failed->set_lack(v1::ABILITY);
  failed->mutable_cause()->set_kind("user");
  failed->mutable_cause()->set_message("no such device");
  return message;
}
v1::TaskMessage GivenBack(const v1::Recall& recall) {
  v1::TaskMessage message;
  message.mutable_dropped()->set_job_uid(recall.job_uid());
  message.mutable_dropped()->set_closure(recall.closure());
  *message.mutable_dropped()->mutable_attempt() = recall.attempt();
  return message;
}

TEST_CASE(
    "two jobs with equal variable names run side by side, each with a worker that is moved after "
    "it returned its work") {
  Mutex mu;
  bool holds = true;
  std::map<TestTask*, std::vector<v1::CoordinatorMessage>> held;
  std::map<TestTask*, std::set<std::uint64_t>> served;  // the jobs that each task served
  TestCluster c([](ControlOptions& o) { o.jobs_running_max = 2; });
  const auto work = [&](TestTask& task, const v1::CoordinatorMessage& m) {
    {
      MutexLock lock(&mu);
      if (m.has_grant()) served[&task].insert(m.grant().job_uid());
      if (m.has_grant() && m.grant().kind() == v1::TRAIN && holds) {
        held[&task].push_back(m);
        return;
      }
    }
    if (!m.has_recall()) return TestCluster::Work(task, m);
    {
      MutexLock lock(&mu);
      const auto of_it = [&](const v1::CoordinatorMessage& one) {
        return one.grant().attempt().n() == m.recall().attempt().n();
      };
      if (std::erase_if(held[&task], of_it) == 0) return;
    }
    task.Send(GivenBack(m.recall()));
  };
  c.AddServer("0", 1);
  TestTask& one = c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "0", 2), work);
  TestTask& two = c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "1", 3), work);
  auto first = c.Submit(TestCluster::CountingYaml("first"));
  REQUIRE(first.ok());
  REQUIRE(c.WaitState("first", "RUNNING").ok());
  const auto both_hold = [&] {
    MutexLock lock(&mu);
    return !held[&one].empty() && !held[&two].empty();
  };
  for (int i = 0; i < 200 && !both_hold(); ++i)
    runtime::WaitableEvent().WaitFor(std::chrono::milliseconds(5));
  REQUIRE(both_hold());
  auto second = c.Submit(TestCluster::CountingYaml("second"));
  REQUIRE(second.ok());
  CHECK(second->state() == "STARTING");
  auto third = c.Submit(TestCluster::CountingYaml("third"));
  REQUIRE(third.ok());
  CHECK(third->state() == "QUEUED");
  REQUIRE(c.WaitState("second", "RUNNING").ok());
  auto jobs = c.Call<v1::ListJobsResponse>(v1::ListJobsRequest());
  REQUIRE(jobs.ok());
  CHECK(jobs->jobs(0).state() == "RUNNING");
  CHECK(jobs->jobs(1).state() == "RUNNING");
  CHECK(jobs->jobs(0).workers_serving() == 1);
  CHECK(jobs->jobs(1).workers_serving() == 1);
  CHECK(jobs->jobs(2).waiting_for() ==
        "the end of a running job: 2 of 2 jobs run (--jobs-running-max)");
  auto tasks = c.Call<v1::ListTasksResponse>(v1::ListTasksRequest());
  REQUIRE(tasks.ok());
  std::multiset<std::string> whose;
  for (const v1::TaskRow& row : tasks->tasks()) {
    if (row.role() == v1::ROLE_WORKER) whose.insert(row.jobs_size() == 1 ? row.jobs(0).name() : "");
  }
  CHECK(whose == std::multiset<std::string>{"first", "second"});
  std::vector<std::pair<TestTask*, v1::CoordinatorMessage>> now;
  {
    MutexLock lock(&mu);
    holds = false;
    for (auto& [task, messages] : held) {
      for (const v1::CoordinatorMessage& m : messages) now.emplace_back(task, m);
    }
  }
  for (const auto& [task, m] : now) TestCluster::Work(*task, m);
  for (const char* name : {"first", "second", "third"}) {
    auto ended = c.WaitState(name, "SUCCEEDED");
    REQUIRE(ended.ok());
    CHECK(ended->closures_succeeded() == 16);
    CHECK(ended->steps_done() == 32);
    CHECK(ended->epoch_rows(1).counting_sum() == 64);
  }
  MutexLock lock(&mu);
  CHECK(served[&one].size() + served[&two].size() >= 4);
}

TEST_CASE(
    "a worker that cannot take part in one of two jobs works for the other, and another worker "
    "replaces it") {
  Mutex mu;
  std::uint64_t picky = 0;
  std::map<std::uint64_t, int> refused, done_by_lame;  // numbers of closures for each job
  TestCluster c([](ControlOptions& o) { o.jobs_running_max = 2; });
  c.AddServer("0", 1);
  const auto lame = [&](TestTask& task, const v1::CoordinatorMessage& m) {
    v1::TaskMessage message;
    {
      MutexLock lock(&mu);
      if (!m.has_grant() || (picky != 0 && m.grant().job_uid() != picky)) {
        if (m.has_grant()) ++done_by_lame[m.grant().job_uid()];
      } else {
        ++refused[m.grant().job_uid()];
        message = Cannot(m.grant());
      }
    }
    message.has_failed() ? task.Send(message) : TestCluster::Work(task, m);
  };
  std::vector<std::pair<TestTask*, v1::CoordinatorMessage>> kept;
  bool keeps = true;
  const auto fit = [&](TestTask& task, const v1::CoordinatorMessage& m) {
    {
      MutexLock lock(&mu);
      if (keeps && m.has_grant() && m.grant().kind() == v1::TRAIN && m.grant().job_uid() == picky) {
        kept.emplace_back(&task, m);
        return;
      }
    }
    TestCluster::Work(task, m);
  };
  c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "0", 2), lame);
  c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "1", 3), fit);
  auto first = c.Submit(TestCluster::CountingYaml("picky"));
  REQUIRE(first.ok());
  {
    MutexLock lock(&mu);
    picky = first->job_uid();
  }
  REQUIRE(c.WaitState("picky", "RUNNING").ok());
  auto second = c.Submit(TestCluster::CountingYaml("easy"));
  REQUIRE(second.ok());
  // The worker that cannot take part in the first job serves the second one, while the first job
  // runs.
  auto easy = c.WaitState("easy", "SUCCEEDED");
  REQUIRE(easy.ok());
  std::vector<std::pair<TestTask*, v1::CoordinatorMessage>> now;
  {
    MutexLock lock(&mu);
    CHECK(refused[picky] >= 1);
    CHECK(done_by_lame[second->job_uid()] > 0);
    keeps = false;
    now = std::move(kept);
  }
  for (const auto& [task, m] : now) TestCluster::Work(*task, m);
  auto ended = c.WaitState("picky", "SUCCEEDED");
  REQUIRE(ended.ok());
  CHECK(ended->closures_succeeded() == 16);
}

TEST_CASE("a job whose only worker cannot take part exchanges it for a worker of another job") {
  Mutex mu;
  std::uint64_t easy = 0;
  bool holds = true;
  std::map<TestTask*, std::vector<v1::CoordinatorMessage>> held;
  TestCluster c([](ControlOptions& o) { o.jobs_running_max = 2; });
  const auto work = [&](TestTask& task, const v1::CoordinatorMessage& m, bool lame) {
    v1::TaskMessage message;
    {
      MutexLock lock(&mu);
      if (m.has_grant() && lame && easy != 0 && m.grant().job_uid() != easy) {
        message = Cannot(m.grant());
      } else if (m.has_grant() && m.grant().kind() == v1::TRAIN && holds) {
        held[&task].push_back(m);
        return;
      } else if (m.has_recall()) {
        const auto of_it = [&](const v1::CoordinatorMessage& one) {
          return one.grant().attempt().n() == m.recall().attempt().n();
        };
        if (std::erase_if(held[&task], of_it) == 0) return;
        message = GivenBack(m.recall());
      }
    }
    message.has_failed() || message.has_dropped() ? task.Send(message) : TestCluster::Work(task, m);
  };
  c.AddServer("0", 1);
  TestTask& fit =
      c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "0", 2),
            [&](TestTask& task, const v1::CoordinatorMessage& m) { work(task, m, false); });
  TestTask& lame =
      c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "1", 3),
            [&](TestTask& task, const v1::CoordinatorMessage& m) { work(task, m, true); });
  auto first = c.Submit(TestCluster::CountingYaml("easy"));
  REQUIRE(first.ok());
  {
    MutexLock lock(&mu);
    easy = first->job_uid();
  }
  const auto both_hold = [&] {
    MutexLock lock(&mu);
    return !held[&fit].empty() && !held[&lame].empty();
  };
  for (int i = 0; i < 200 && !both_hold(); ++i)
    runtime::WaitableEvent().WaitFor(std::chrono::milliseconds(5));
  REQUIRE(both_hold());
  // A second job begins. The newest worker is the first one to be moved to it.
  REQUIRE(c.Submit(TestCluster::CountingYaml("picky")).ok());
  // The first job has not ended, so it keeps the other worker.
  REQUIRE(c.WaitState("picky", "RUNNING").ok());
  std::vector<std::pair<TestTask*, v1::CoordinatorMessage>> now;
  {
    MutexLock lock(&mu);
    holds = false;
    for (auto& [task, messages] : held) {
      for (const v1::CoordinatorMessage& m : messages) now.emplace_back(task, m);
    }
  }
  for (const auto& [task, m] : now) TestCluster::Work(*task, m);
  for (const char* name : {"easy", "picky"}) {
    auto ended = c.WaitState(name, "SUCCEEDED");
    REQUIRE(ended.ok());
    CHECK(ended->closures_succeeded() == 16);
  }
}

TEST_CASE(
    "a worker without functions trains, and one with functions is moved to the functions job that "
    "needs it") {
  Mutex mu;
  std::map<std::string, std::set<std::uint64_t>> trained;  // the jobs that each worker trained
  TestCluster c([](ControlOptions& o) { o.jobs_running_max = 2; });
  const auto worker = [&](const std::string& name, std::uint64_t uid, bool functions) {
    v1::Hello hello = TestCluster::HelloOf(v1::ROLE_WORKER, name, uid);
    if (functions) hello.add_functions("fit");
    c.Add(hello, [&, name](TestTask& task, const v1::CoordinatorMessage& m) {
      if (m.has_grant() && m.grant().kind() == v1::TRAIN) {
        MutexLock lock(&mu);
        trained[name].insert(m.grant().job_uid());
      }
      TestCluster::Work(task, m);
    });
  };
  c.AddServer("0", 1);
  worker("with", 2, true);
  auto training = c.Submit(TestCluster::CountingYaml("training", 40000, 1));
  REQUIRE(training.ok());
  REQUIRE(c.WaitState("training", "RUNNING").ok());  // the job has the only worker
  worker("without", 3, false);
  auto functions = c.Submit(
      "apiVersion: evergrad.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: functions}\nspec:\n  "
      "type: functions\n"
      "  functions: {variables: [{name: slope, shape: [2]}]}\n  optimizer: {type: sgd, "
      "learning_rate: 0.01}\n  checkpoint: off\n");
  REQUIRE(functions.ok());
  v1::ScheduleClosureRequest request;
  request.set_job("functions");
  request.mutable_call()->set_client(77);
  request.mutable_call()->set_call(1);
  request.set_function("fit");
  request.set_wait_ms(10000);
  const auto scheduled = c.Call<v1::ScheduleClosureResponse>(request);
  REQUIRE(scheduled.ok());
  REQUIRE(scheduled->scheduled());
  CHECK(c.WaitJob("functions", [](const v1::JobStatus& s) {
           return s.closures_succeeded() == 1;
         }).ok());
  MutexLock lock(&mu);
  CHECK(trained["with"].count(functions->job_uid()) == 1);
  CHECK(trained["without"].count(functions->job_uid()) == 0);
}

TEST_CASE(
    "a server with a notice is told Drained once every job has moved its shards or has ended") {
  TestCluster c([](ControlOptions& o) { o.jobs_running_max = 2; });
  const auto never = [](TestTask&, const v1::CoordinatorMessage&) {};
  TestTask& server = c.AddServer("0", 1);
  REQUIRE(server.Registered());
  std::uint64_t uid = 10;
  for (const char* name : {"first", "second"})
    REQUIRE(c.Submit(TestCluster::CountingYaml(name)).ok());
  for (const char* name : {"first", "second"}) {
    // Each job gets its own worker. The worker describes the job and never finishes a training
    // closure.
    c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, name, uid++),
          [](TestTask& task, const v1::CoordinatorMessage& m) {
            if (!m.has_grant() || m.grant().kind() != v1::TRAIN) TestCluster::Work(task, m);
          });
    REQUIRE(c.WaitState(name, "RUNNING").ok());
  }
  // This server never answers an order to receive a shard.
  TestTask& silent = c.Add(TestCluster::HelloOf(v1::ROLE_PS_SERVER, "1", 4), never);
  REQUIRE(silent.Registered());
  v1::TaskMessage leaving;
  leaving.mutable_leaving()->set_reason("preemption notice");
  leaving.mutable_leaving()->set_drains(true);
  server.Send(leaving);
  const auto stops = [](std::uint64_t job) {
    return [job](const v1::CoordinatorMessage& m) {
      return m.has_stop() && m.stop().job_uid() == job;
    };
  };
  const auto drained = [](const v1::CoordinatorMessage& m) { return m.has_drained(); };
  for (const char* name : {"first", "second"}) {
    const auto status = c.WaitState(name, "RUNNING");
    REQUIRE(status.ok());
    CHECK(server.Wait(stops(status->job_uid())));  // the shards of both jobs begin to move
  }
  v1::CancelJobRequest cancel;
  cancel.set_job("first");
  REQUIRE(c.Call<v1::CancelJobResponse>(cancel).ok());
  REQUIRE(c.WaitState("first", "CANCELLED").ok());
  CHECK_FALSE(server.Has(drained));
  cancel.set_job("second");
  REQUIRE(c.Call<v1::CancelJobResponse>(cancel).ok());
  REQUIRE(c.WaitState("second", "CANCELLED").ok());
  CHECK(server.Wait(drained));
}

TEST_CASE(
    "jobs that are cancelled in the queue are forgotten too, however long the running job takes") {
  TestCluster c([](ControlOptions& o) { o.jobs_kept_max = 2; });
  // No task is connected, so the first job waits.
  REQUIRE(c.Submit(TestCluster::CountingYaml("first")).ok());
  for (const char* name : {"a", "b", "c", "d"}) {
    REQUIRE(c.Submit(TestCluster::CountingYaml(name)).ok());
    v1::CancelJobRequest cancel;
    cancel.set_job(name);
    REQUIRE(c.Call<v1::CancelJobResponse>(cancel).ok());
    REQUIRE(c.WaitState(name, "CANCELLED").ok());
  }
  // Jobs are forgotten in a later turn of the executor, so the next answers may still list them.
  std::set<std::string> names;
  for (int i = 0; i < 400; ++i) {
    auto jobs = c.Call<v1::ListJobsResponse>(v1::ListJobsRequest());
    REQUIRE(jobs.ok());
    names.clear();
    for (const v1::JobStatus& job : jobs->jobs()) names.insert(job.name());
    if (names.size() == 3) break;
  }
  CHECK(names == std::set<std::string>{"first", "c", "d"});
}

TEST_CASE("a submission is refused with all reasons") {
  TestCluster c([](ControlOptions& o) {
    o.counting_allowed = false;
    o.jobs_queued_max = 1;
  });
  auto counting = c.Submit(TestCluster::CountingYaml("count"));
  CHECK_THAT(std::string(counting.status().message()), Contains("--failpoints"));
  auto mistakes = c.Submit("kind: TrainingJob\nspec: {what: 1}\n");
  REQUIRE(mistakes.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(mistakes.status().message()), Contains("job.yaml:2:"));
  CHECK(c.Submit("").status().code() == absl::StatusCode::kInvalidArgument);

  TestCluster d([](ControlOptions& o) { o.jobs_queued_max = 1; });
  REQUIRE(d.Submit(TestCluster::CountingYaml("a")).ok());
  CHECK(d.Submit(TestCluster::CountingYaml("a")).status().code() ==
        absl::StatusCode::kAlreadyExists);
  REQUIRE(d.Submit(TestCluster::CountingYaml("b")).ok());
  CHECK(d.Submit(TestCluster::CountingYaml("c")).status().code() ==
        absl::StatusCode::kResourceExhausted);

  TestCluster confined([](ControlOptions& o) {
    o.checkpoint_roots = fs::Roots::Only({"/saved"}, "start it with --checkpoint-root FOLDER");
  });
  const auto saved_in = [&](const std::string& name, const std::string& folder) {
    const std::string with = absl::StrCat("checkpoint: {directory: \"", folder, "\"}");
    return confined
        .Submit(absl::StrReplaceAll(TestCluster::CountingYaml(name), {{"checkpoint: off", with}}))
        .status();
  };
  for (const char* folder : {"/etc", "/saved/../etc", "/savedelsewhere", "file:///etc", "here"}) {
    const absl::Status refused = saved_in("a", folder);
    CHECK(absl::IsPermissionDenied(refused));
    CHECK_THAT(std::string(refused.message()),
               Contains("checkpoint.directory lies outside of the allowed folders") &&
                   Contains(absl::StrCat("path=", folder)) && Contains("--checkpoint-root FOLDER"));
  }
  CHECK(saved_in("a", "/saved/team").ok());
  CHECK(saved_in("b", "file:///saved").ok());
  // This job stores its checkpoints in its runs folder, which is always allowed.
  CHECK(confined.Submit(TestCluster::CountingYaml("c")).ok());

  v1::GetJobRequest unknown;
  unknown.set_job("nobody");
  CHECK(d.Call<v1::GetJobResponse>(unknown).status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE(
    "a server that leaves while no job runs is drained at once, task list shows the reason, and "
    "operators can drain tasks") {
  TestCluster c;
  TestTask& server = c.Add(TestCluster::HelloOf(v1::ROLE_PS_SERVER, "0", 1));
  TestTask& worker = c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "a", 2));
  REQUIRE(server.Registered());
  REQUIRE(worker.Registered());
  const auto drain = [&](const std::string& task) {
    v1::DrainTaskRequest request;
    request.set_task(task);
    return c.Call<v1::DrainTaskResponse>(request).status();
  };
  REQUIRE(drain("ps_server/0").ok());
  REQUIRE(drain("worker/a").ok());
  const auto told = [](const v1::CoordinatorMessage& m) {
    return m.has_drain() && m.drain().reason() == "psctl task drain";
  };
  CHECK(server.Wait(told));
  CHECK(worker.Wait(told));
  CHECK(drain("ps_server/7").code() == absl::StatusCode::kNotFound);
  for (const char* name : {"", "coordinator/0", "worker", "worker/", "what/0"}) {
    INFO(name);
    CHECK(drain(name).code() == absl::StatusCode::kInvalidArgument);
  }
  v1::TaskMessage leaving;
  leaving.mutable_leaving()->set_reason("preemption notice");
  leaving.mutable_leaving()->set_drains(true);
  server.Send(leaving);
  CHECK(server.Wait([](const v1::CoordinatorMessage& m) {
    return m.has_drained() && m.drained().cannot().empty();
  }));
  bool listed = false;
  const auto tasks = c.Call<v1::ListTasksResponse>(v1::ListTasksRequest());
  REQUIRE(tasks.ok());
  for (const v1::TaskRow& row : tasks->tasks()) {
    if (row.role() == v1::ROLE_PS_SERVER)
      listed =
          row.state() == "leaving" && row.reason() == "announced that it leaves: preemption notice";
  }
  CHECK(listed);
  // A notice may come while the session is interrupted. The Hello then states the reason, which
  // counts like a notice in a message.
  v1::Hello hello = TestCluster::HelloOf(v1::ROLE_PS_SERVER, "1", 3);
  hello.set_leaving("SIGTERM");
  CHECK(c.Add(hello).Wait([](const v1::CoordinatorMessage& m) { return m.has_drained(); }));
}

TEST_CASE("unknown methods and malformed requests are refused") {
  TestCluster c;
  CHECK(transport::UnaryAndWait(*c.channel, "/evergrad.v1.Control/Nothing", "",
                                std::chrono::seconds(5))
            .status()
            .code() == absl::StatusCode::kUnimplemented);
  CHECK(transport::UnaryAndWait(*c.channel, client::ControlMethod<v1::GetJobRequest>(),
                                "\xff\xff\xff", std::chrono::seconds(5))
            .status()
            .code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("another protocol version is refused, and the error names both versions") {
  TestCluster c;
  v1::Hello hello = TestCluster::HelloOf(v1::ROLE_WORKER, "0", 1);
  hello.set_protocol_version(99);
  hello.set_build_id("9.9");
  TestTask& task = c.Add(hello);
  auto rejected = task.Rejected();
  REQUIRE(rejected);
  CHECK(rejected->kind() == "version");
  CHECK_FALSE(rejected->exit());
  CHECK_THAT(rejected->message(), Contains("coordinator=1 (test)") && Contains("task=99 (9.9)"));
  CHECK(task.WaitEnd());
}

TEST_CASE("malformed session messages get a typed refusal, and other tasks are unaffected") {
  TestCluster c;
  TestTask& good = c.AddWorker("good", 1);
  REQUIRE(good.Registered());
  SECTION("bytes that are no batch") {
    TestTask& bad = c.AddWorker("bad", 2);
    REQUIRE(bad.Registered());
    bad.SendBytes("\xff\xff\xff garbage");
    auto rejected = bad.Rejected();
    REQUIRE(rejected);
    CHECK(rejected->kind() == "malformed");
    CHECK(bad.WaitEnd());
  }
  SECTION("a second Hello") {
    TestTask& bad = c.AddWorker("bad", 2);
    REQUIRE(bad.Registered());
    v1::TaskMessage message;
    *message.mutable_hello() = TestCluster::HelloOf(v1::ROLE_WORKER, "bad", 2);
    bad.Send(message);
    auto rejected = bad.Rejected();
    REQUIRE(rejected);
    CHECK_THAT(rejected->message(), Contains("second Hello"));
  }
  SECTION("malformed sets in a server's Hello") {
    v1::Hello hello = TestCluster::HelloOf(v1::ROLE_PS_SERVER, "0", 3);
    hello.add_shards()->mutable_done()->add_bounds(5);
    auto rejected = c.Add(hello).Rejected();
    REQUIRE(rejected);
    CHECK(rejected->kind() == "malformed");
  }
  SECTION("an impossible term") {
    v1::Hello hello = TestCluster::HelloOf(v1::ROLE_WORKER, "x", 3);
    hello.set_highest_term(~0ull);
    auto rejected = c.Add(hello).Rejected();
    REQUIRE(rejected);
    CHECK(rejected->kind() == "malformed");
  }
  SECTION("a text that would fill the list of tasks") {
    v1::Hello hello = TestCluster::HelloOf(v1::ROLE_WORKER, "x", 3);
    hello.set_build_id(std::string(1 << 20, 'b'));
    auto rejected = c.Add(hello).Rejected();
    REQUIRE(rejected);
    CHECK_THAT(rejected->message(), Contains("text of the Hello is too long"));
  }
  SECTION(
      "a forged term just below the limit does not raise our term to where all tasks are refused") {
    v1::Hello hello = TestCluster::HelloOf(v1::ROLE_WORKER, "x", 3);
    hello.set_highest_term((1ull << 62) - 1);
    hello.set_life_id(9);
    auto rejected = c.Add(hello).Rejected();
    REQUIRE(rejected);
    CHECK(rejected->kind() == "malformed");
    v1::Hello server = TestCluster::HelloOf(v1::ROLE_PS_SERVER, "0", 4);
    server.add_shards()->mutable_epoch()->set_term((1ull << 62) - 1);
    rejected = c.Add(server).Rejected();
    REQUIRE(rejected);
    auto registered = c.AddWorker("y", 5).Registered();
    REQUIRE(registered);
    CHECK(registered->term() == 1);
  }
  SECTION("an unknown role") {
    auto rejected = c.Add(TestCluster::HelloOf(v1::ROLE_COORDINATOR, "x", 3)).Rejected();
    REQUIRE(rejected);
    CHECK(rejected->kind() == "malformed");
  }
  auto tasks = c.Call<v1::ListTasksResponse>(v1::ListTasksRequest());
  REQUIRE(tasks.ok());
  int alive = 0;
  for (const v1::TaskRow& row : tasks->tasks())
    alive += row.role() == v1::ROLE_WORKER && row.identity() == "good" && row.state() == "alive";
  CHECK(alive == 1);
}

TEST_CASE("the newer of two workers of one identity is served, and the older is told to exit") {
  TestCluster c;
  TestTask& older = c.AddWorker("w", 1);
  REQUIRE(older.Registered());
  TestTask& newer = c.AddWorker("w", 2);
  REQUIRE(newer.Registered());
  auto rejected = older.Rejected();
  REQUIRE(rejected);
  CHECK(rejected->kind() == "replaced");
  CHECK(rejected->exit());
  TestTask& again = c.AddWorker("w", 1);
  rejected = again.Rejected();
  REQUIRE(rejected);
  CHECK(rejected->kind() == "replaced");
  CHECK(rejected->exit());
}

TEST_CASE(
    "a second server of a living identity waits, is told the holder, and is registered after the "
    "holder's end") {
  TestCluster c([](ControlOptions& o) { o.membership.lease = std::chrono::milliseconds(300); });
  TestTask& first = c.AddServer("0", 1);
  REQUIRE(first.Registered());
  TestTask& second = c.AddServer("0", 2);
  auto rejected = second.Rejected();
  REQUIRE(rejected);
  CHECK(rejected->kind() == "identity_taken");
  CHECK_FALSE(rejected->exit());
  CHECK(rejected->retry_after_ms() > 0);
  CHECK_THAT(rejected->message(), Contains("pid 1 on h"));
  first.Cut();
  bool taken = false;
  // This event is never set, so each wait only lets time pass. Meanwhile the lease of the first
  // task expires.
  runtime::WaitableEvent pause;
  for (int i = 0; i < 500 && !taken; ++i) {
    pause.WaitFor(std::chrono::milliseconds(20));
    TestTask& retry = c.AddServer("0", 2);
    auto answer = retry.Wait(
        [](const v1::CoordinatorMessage& m) { return m.has_registered() || m.has_rejected(); });
    REQUIRE(answer);
    taken = answer->has_registered();
  }
  CHECK(taken);
}

TEST_CASE("a worker without a name is numbered") {
  TestCluster c;
  TestTask& a = c.AddWorker("", 1);
  auto first = a.Registered();
  REQUIRE(first);
  CHECK(first->identity() == "0");
  auto second = c.AddWorker("", 2).Registered();
  REQUIRE(second);
  CHECK(second->identity() == "1");
  CHECK(second->heartbeat_ms() == second->lease_ms() / 4);
}

TEST_CASE(
    "a new coordinator chooses a term above any reported one, drops every shard and supersedes "
    "every attempt") {
  TestCluster c([](ControlOptions& o) { o.window = std::chrono::milliseconds(200); });
  v1::Hello server = TestCluster::HelloOf(v1::ROLE_PS_SERVER, "0", 1);
  server.set_highest_term(41);
  server.set_life_id(99);
  v1::HeldShard* shard = server.add_shards();
  shard->set_job_uid(7);
  shard->set_shard(3);
  shard->mutable_epoch()->set_term(41);
  shard->mutable_epoch()->set_n(5);
  v1::Hello worker = TestCluster::HelloOf(v1::ROLE_WORKER, "0", 2);
  worker.set_highest_term(40);
  v1::HeldAttempt* attempt = worker.add_attempts();
  attempt->set_job_uid(7);
  attempt->set_closure(11);
  attempt->mutable_attempt()->set_term(40);
  attempt->mutable_attempt()->set_n(8);
  attempt->set_kind(v1::TRAIN);
  attempt->set_all_targets(true);
  TestTask& w = c.Add(worker);
  TestTask& s = c.Add(server);
  auto registered = w.Registered();
  REQUIRE(registered);
  CHECK(registered->term() == 42);
  CHECK(registered->adopted_size() == 0);
  auto answer = w.Wait([](const v1::CoordinatorMessage& m) { return m.has_done_answer(); });
  REQUIRE(answer);
  CHECK(answer->done_answer().superseded());
  CHECK(answer->done_answer().closure() == 11);
  auto drop = s.Wait([](const v1::CoordinatorMessage& m) { return m.has_drop(); });
  REQUIRE(drop);
  CHECK(drop->drop().shard() == 3);
  CHECK(drop->drop().epoch().n() == 5);
  CHECK(s.Wait([](const v1::CoordinatorMessage& m) { return m.has_job_ended(); }));
  // A Done of the forgotten job must be answered with superseded.
  v1::TaskMessage done;
  done.mutable_done()->set_job_uid(7);
  done.mutable_done()->set_closure(12);
  w.Send(done);
  CHECK(w.Wait([](const v1::CoordinatorMessage& m) {
    return m.has_done_answer() && m.done_answer().closure() == 12 && m.done_answer().superseded();
  }));
}

TEST_CASE("a task that has seen a later life makes the coordinator begin a life above it") {
  TestCluster c([](ControlOptions& o) { o.window = std::chrono::milliseconds(100); });
  TestTask& first = c.AddWorker("0", 1);
  auto before = first.Registered();
  REQUIRE(before);
  CHECK(before->term() == 1);
  v1::Hello late = TestCluster::HelloOf(v1::ROLE_WORKER, "1", 2);
  late.set_highest_term(6);
  late.set_life_id(123);
  TestTask& second = c.Add(late, TestCluster::Work);
  auto registered = second.Registered();
  REQUIRE(registered);
  CHECK(registered->term() == 7);
  auto rejected = first.Rejected();  // the process may register again without an exit
  REQUIRE(rejected);
  CHECK_FALSE(rejected->exit());
  auto again = c.AddWorker("0", 1).Registered();
  REQUIRE(again);
  CHECK(again->term() == 7);
  REQUIRE(c.Submit(TestCluster::CountingYaml("count")).ok());
  c.AddServer("0", 3);
  CHECK(c.WaitState("count", "SUCCEEDED").ok());
}

TEST_CASE("a worker that dies in mid-job is replaced by the others, and its death is an event") {
  TestCluster c;
  TestTask& victim = c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "victim", 1),
                           [](TestTask& task, const v1::CoordinatorMessage& m) {
                             if (m.has_grant() && m.grant().kind() == v1::DESCRIBE)
                               TestCluster::Work(task, m);  // afterwards this worker does nothing
                           });
  c.AddServer("0", 2);
  REQUIRE(c.Submit(TestCluster::CountingYaml("count")).ok());
  REQUIRE(victim.Wait([](const v1::CoordinatorMessage& m) {
    return m.has_grant() && m.grant().kind() == v1::TRAIN;
  }));
  c.AddWorker("0", 3);
  victim.Cut();
  auto status = c.WaitState("count", "SUCCEEDED");
  REQUIRE(status.ok());
  CHECK_THAT(status->result_json(), Contains("\"task\": \"worker/victim\""));
  CHECK(status->attempts() > status->closures_succeeded());
}

TEST_CASE("a silent worker's lease expires, its session is closed, and it may return") {
  TestCluster c([](ControlOptions& o) { o.membership.lease = std::chrono::milliseconds(200); });
  TestTask& silent = c.AddWorker("0", 1);
  REQUIRE(silent.Registered());
  auto rejected = silent.Rejected();
  REQUIRE(rejected);
  CHECK_FALSE(rejected->exit());
  CHECK(silent.WaitEnd());
  CHECK(c.AddWorker("0", 1).Registered());
}

TEST_CASE("a cancelled job is sealed at its servers and ends CANCELLED") {
  TestCluster c;
  c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "0", 1),
        [](TestTask& task, const v1::CoordinatorMessage& m) {
          if (m.has_grant() && m.grant().kind() == v1::DESCRIBE) TestCluster::Work(task, m);
        });
  TestTask& server = c.AddServer("0", 2);
  REQUIRE(c.Submit(TestCluster::CountingYaml("count")).ok());
  REQUIRE(c.WaitState("count", "RUNNING").ok());
  v1::CancelJobRequest cancel;
  CHECK(c.Call<v1::CancelJobResponse>(cancel).status().code() ==
        absl::StatusCode::kInvalidArgument);  // the request does not name a task
  cancel.set_job("count");
  REQUIRE(c.Call<v1::CancelJobResponse>(cancel).ok());
  auto status = c.WaitState("count", "CANCELLED");
  REQUIRE(status.ok());
  CHECK(server.Wait([](const v1::CoordinatorMessage& m) { return m.has_seal(); }));
  CHECK(server.Wait([](const v1::CoordinatorMessage& m) { return m.has_job_ended(); }));
}

TEST_CASE(
    "logs of tasks are read through their sessions, and a cursor continues after the last answer") {
  TestCluster c;
  REQUIRE(c.AddWorker("0", 1).Registered());
  REQUIRE(c.AddWorker("1", 2).Registered());
  v1::ReadTaskLogsRequest request;
  request.add_tasks("worker/0");
  auto first = c.Call<v1::ReadTaskLogsResponse>(request);
  REQUIRE(first.ok());
  REQUIRE(first->lines_size() == 4);
  for (const v1::LogLine& line : first->lines()) CHECK(line.task() == "worker/0");
  *request.mutable_cursors() = first->cursors();
  auto second = c.Call<v1::ReadTaskLogsResponse>(request);
  REQUIRE(second.ok());
  CHECK(second->lines_size() == 0);
  // The cursor stands between the two lines of one millisecond. The answer has the second of these
  // lines and all newer lines.
  (*request.mutable_cursors())["worker/0"] = 2000ull * 100'000 + 1;
  auto third = c.Call<v1::ReadTaskLogsResponse>(request);
  REQUIRE(third.ok());
  REQUIRE(third->lines_size() == 2);
  CHECK(third->lines(0).wall_ms() == 2000);
  CHECK(third->lines(1).wall_ms() == 3000);
  v1::ReadTaskLogsRequest unknown;
  unknown.add_tasks("worker/9");
  CHECK(c.Call<v1::ReadTaskLogsResponse>(unknown).status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE("a log line of the coordinator with a user's invalid UTF-8 can be read") {
  TestCluster c;
  c.logger.Error("refused: name=\xff");
  v1::ReadTaskLogsRequest request;
  request.add_tasks("coordinator");
  const auto read = c.Call<v1::ReadTaskLogsResponse>(request);
  REQUIRE(read.ok());
  REQUIRE(read->lines_size() > 0);
  CHECK(read->lines(read->lines_size() - 1).text() == "refused: name=\xEF\xBF\xBD");
}

TEST_CASE("the cluster is described, and each limit shows its fill level and refusals") {
  TestCluster c([](ControlOptions& o) { o.membership.tasks_max = 2; });
  REQUIRE(c.AddWorker("0", 1).Registered());
  REQUIRE(c.AddServer("0", 2).Registered());
  auto third = c.AddWorker("1", 3).Rejected();
  REQUIRE(third);
  CHECK(third->kind() == "limit");
  auto info = c.Call<v1::GetClusterInfoResponse>(v1::GetClusterInfoRequest());
  REQUIRE(info.ok());
  CHECK(info->term() == 1);
  CHECK(info->workers_alive() == 1);
  CHECK(info->servers_alive() == 1);
  CHECK(info->protocol_version() == client::kProtocolVersion);
  const std::string text = c.registry.PrometheusText();
  for (const char* name :
       {"evergrad_coordinator_tasks", "evergrad_coordinator_sessions",
        "evergrad_coordinator_jobs_queued", "evergrad_coordinator_calls",
        "evergrad_coordinator_file_bytes", "evergrad_coordinator_closures_open"}) {
    for (const char* part : {"_current", "_limit", "_refused_total"})
      CHECK_THAT(text, Contains(std::string(name) + part));
  }
  CHECK_THAT(text, Contains("evergrad_coordinator_tasks_refused_total 1"));
}

TEST_CASE("a call that waits for a job is answered when the job changes") {
  TestCluster c;
  REQUIRE(c.Submit(TestCluster::CountingYaml("count")).ok());
  v1::GetJobRequest request;
  request.set_job("count");
  auto now = c.Call<v1::GetJobResponse>(request);
  REQUIRE(now.ok());
  request.set_seen_revision(now->job().revision() + 1000);
  request.set_wait_ms(50);
  // The call must return, although nothing changes.
  auto unchanged = c.Call<v1::GetJobResponse>(request);
  REQUIRE(unchanged.ok());
  request.set_seen_revision(unchanged->job().revision());
  request.set_wait_ms(9000);
  v1::CancelJobRequest cancel;
  cancel.set_job("count");
  REQUIRE(c.Call<v1::CancelJobResponse>(cancel).ok());
  auto changed = c.Call<v1::GetJobResponse>(request);
  REQUIRE(changed.ok());
  CHECK(changed->job().revision() > unchanged->job().revision());
  request.set_events_after(~0ull);
  auto few = c.Call<v1::GetJobResponse>(request);
  REQUIRE(few.ok());
  CHECK(few->job().events_size() == 0);
}

TEST_CASE("a server that registers after a job's end still drops its shards of the job") {
  TestCluster c;
  c.AddWorker("0", 1);
  TestTask& server = c.AddServer("0", 2);
  REQUIRE(c.Submit(TestCluster::CountingYaml("count")).ok());
  // The status with this state is sent in the turn in which the job ends.
  auto status = c.WaitState("count", "SUCCEEDED");
  REQUIRE(status.ok());
  // The server's session ended in the same turn. The server's process returns, and still holds
  // shards of the ended job.
  v1::Hello hello = TestCluster::HelloOf(v1::ROLE_PS_SERVER, "0", 2);
  for (std::uint32_t p = 0; p < 4; ++p) {
    v1::HeldShard* held = hello.add_shards();
    held->set_job_uid(status->job_uid());
    held->set_shard(p);
    held->mutable_epoch()->set_term(1);
    held->mutable_epoch()->set_n(p + 1);
  }
  server.Cut();
  TestTask& back = c.Add(hello);
  CHECK(back.Wait(
      [](const v1::CoordinatorMessage& m) { return m.has_drop() && m.drop().shard() == 3; }));
  CHECK(back.Wait([](const v1::CoordinatorMessage& m) {
    return m.has_job_ended() && m.job_ended().state() == "SUCCEEDED";
  }));
}

TEST_CASE("a job that is cancelled in the queue counts as ended and is never shown as starting") {
  TestCluster c;
  REQUIRE(c.Submit(TestCluster::CountingYaml("first")).ok());
  REQUIRE(c.Submit(TestCluster::CountingYaml("second")).ok());
  v1::CancelJobRequest cancel;
  cancel.set_job("second");
  auto cancelled = c.Call<v1::CancelJobResponse>(cancel);
  REQUIRE(cancelled.ok());
  CHECK(cancelled->state() != "STARTING");
  REQUIRE(c.WaitJob("second", [](const v1::JobStatus& s) {
             CHECK(s.state() != "STARTING");
             return s.state() == "CANCELLED";
           }).ok());
  const auto& ended = c.registry.GetCounter("evergrad_coordinator_jobs_ended_total",
                                            "jobs that ended in any state");
  for (int i = 0; i < 400 && ended.value() == 0; ++i)
    REQUIRE(c.Call<v1::ListJobsResponse>(v1::ListJobsRequest()).ok());
  CHECK(ended.value() == 1);
}

TEST_CASE(
    "a restarted coordinator answers for an unknown job with the time since which it knows jobs") {
  TestCluster c([](ControlOptions& o) { o.window = std::chrono::milliseconds(50); });
  v1::Hello hello = TestCluster::HelloOf(v1::ROLE_WORKER, "0", 1);
  hello.set_highest_term(4);  // the term of a former coordinator
  hello.set_life_id(9);
  REQUIRE(c.Add(hello).Registered());
  v1::GetJobRequest request;
  request.set_job("before");
  const absl::Status status = c.Call<v1::GetJobResponse>(request).status();
  CHECK(status.code() == absl::StatusCode::kNotFound);
  CHECK_THAT(std::string(status.message()), Contains("no such job: job=before") &&
                                                Contains("the coordinator was restarted at 20") &&
                                                Contains("does not know earlier jobs"));
}

TEST_CASE(
    "a coordinator with a journal knows all its jobs, and does not claim that it forgot some") {
  MemoryStateStore store({.persistent = true});
  TestCluster c({}, &store);
  v1::GetJobRequest request;
  request.set_job("before");
  const absl::Status status = c.Call<v1::GetJobResponse>(request).status();
  CHECK(status.code() == absl::StatusCode::kNotFound);
  CHECK_THAT(std::string(status.message()),
             Contains("no such job: job=before (psctl job list shows the known jobs)"));
}

TEST_CASE(
    "tasks with a later life than the journal's cause a report that the journal is another one or "
    "was truncated") {
  const std::uint64_t of_the_tasks = GENERATE(0, 4);
  MemoryStateStore store({.persistent = true});
  TestCluster c([](ControlOptions& o) { o.window = std::chrono::milliseconds(50); }, &store);
  v1::Hello hello = TestCluster::HelloOf(v1::ROLE_WORKER, "0", 1);
  hello.set_highest_term(of_the_tasks);
  hello.set_life_id(of_the_tasks);
  REQUIRE(c.Add(hello).Registered());
  bool said = false;
  for (const log::Line& line : c.logger.Read(0, 0, "", 100))
    said |=
        line.text.find(
            "the tasks were registered with another journal before, or this journal has lost its "
            "newest entries: journal_term=0 tasks_term=4") == 0;
  CHECK(said == (of_the_tasks != 0));
}

TEST_CASE(
    "a journal of another version lists an ended job, and a living job is named and prevents the "
    "start") {
  MemoryStateStore store({.persistent = true});
  const auto rewrite = [&](JobUid uid, const std::function<void(v1::JobSnapshot&)>& change) {
    StoredJob stored = *store.LoadJob(uid);
    v1::JobSnapshot snapshot;
    REQUIRE(snapshot.ParseFromString(stored.snapshot));
    change(snapshot);
    REQUIRE(store.Checkpoint(uid, stored.state, snapshot.SerializeAsString()).ok());
  };
  {
    TestCluster c({}, &store);
    c.AddWorker("0", 1);
    c.AddServer("0", 3);
    REQUIRE(c.Submit(TestCluster::CountingYaml("ended")).ok());
    REQUIRE(c.WaitState("ended", "SUCCEEDED").ok());
  }
  {
    TestCluster c({}, &store);
    REQUIRE(c.Submit(TestCluster::CountingYaml("lives")).ok());  // no worker runs this job
    REQUIRE(c.Submit(TestCluster::CountingYaml("queued")).ok());
  }
  const std::vector<JobUid> uids = *store.ListJobs();
  REQUIRE(uids.size() == 3);
  const auto of_another_version = [](v1::JobSnapshot& s) {
    s.set_yaml("key: of another version\n" + s.yaml());
  };
  for (const JobUid uid : uids) rewrite(uid, of_another_version);
  const StoredJob before = *store.LoadJob(uids[1]);

  TestCluster other;  // provides the clock and the transport
  const test::TempFolder folder;
  const auto start = [&] {
    Coordinator::Parts parts;
    parts.transport = other.transport.get();
    parts.clock = &other.clock;
    parts.logger = &other.logger;
    parts.registry = &other.registry;
    parts.failpoints = &other.failpoints;
    parts.store = &store;
    Options options;
    options.control.runs_folder = folder / "runs";
    options.control.counting_allowed = true;
    transport::ServerOptions server;
    server.listen = "coordinator:1";
    return Coordinator::Create(options, server, parts);
  };
  const absl::Status refused = start().status();
  CHECK_THAT(std::string(refused.message()),
             Contains("cannot resume a job of the journal: job=" + JobUidString(uids[1]) +
                      " name=lives reason=this version refuses the job's YAML") &&
                 Contains("the journal was not changed: start the version that ran the job"));
  CHECK(*store.LoadJob(uids[1]) == before);
  std::set<std::string> named;
  for (const log::Line& line : other.logger.Read(0, 0, "", 100)) {
    for (const char* name : {"ended", "lives", "queued"})
      if (line.text.find(std::string("name=") + name) != std::string::npos) named.insert(name);
  }
  CHECK(named == std::set<std::string>{"lives", "queued"});

  // The same jobs are now ended in the journal, as if the former version had ended them.
  for (std::size_t i = 1; i < 3; ++i) {
    rewrite(uids[i], [](v1::JobSnapshot& s) {
      s.set_state("CANCELLED");
      s.set_ending("CANCELLED");
    });
  }
  TestCluster c({}, &store);
  const auto jobs = c.Call<v1::ListJobsResponse>(v1::ListJobsRequest());
  REQUIRE(jobs.ok());
  REQUIRE(jobs->jobs_size() == 3);
  CHECK(jobs->jobs(0).name() == "ended");
  CHECK(jobs->jobs(0).state() == "SUCCEEDED");
  CHECK(jobs->jobs(1).state() == "CANCELLED");
  const auto shown = c.WaitState("ended", "SUCCEEDED");
  REQUIRE(shown.ok());
  CHECK(shown->closures_succeeded() == 16);
  CHECK(c.Call<v1::ListVariablesResponse>(v1::ListVariablesRequest()).ok());
  // A new job must be able to run.
  c.AddWorker("0", 1);
  c.AddServer("0", 3);
  REQUIRE(c.Submit(TestCluster::CountingYaml("next")).ok());
  CHECK(c.WaitState("next", "SUCCEEDED").ok());
}

TEST_CASE("a task that is gone is listed without its last report") {
  TestCluster c([](ControlOptions& o) {
    o.membership.lease = std::chrono::milliseconds(200);
    o.membership.server_lost_after = std::chrono::milliseconds(300);
  });
  TestTask& server = c.AddServer("0", 1);
  REQUIRE(server.Registered());
  v1::TaskMessage beat;
  beat.mutable_heartbeat()->mutable_server()->set_shards(7);
  beat.mutable_heartbeat()->mutable_server()->set_bytes(700);
  server.Send(beat);
  const auto row = [&] {
    auto tasks = c.Call<v1::ListTasksResponse>(v1::ListTasksRequest());
    REQUIRE(tasks.ok());
    REQUIRE(tasks->tasks_size() == 2);
    return tasks->tasks(1);
  };
  server.Cut();
  for (int i = 0; i < 100000 && row().state() != "gone"; ++i) {
  }
  CHECK(row().state() == "gone");
  CHECK(row().shards() == 0);
  CHECK(row().bytes() == 0);
  CHECK(row().activity() == "gone");
}

namespace {

// A store that accepts commits at once. After Set(true) no commit becomes durable. The test can
// also set the health of the store.
class LateStore final : public StateStore {
 public:
  using StateStore::Commit;
  absl::Status CommitTerm(Term term) override { return inner_.CommitTerm(term); }
  Term term() const override { return inner_.term(); }
  absl::Status Commit(JobUid job, const Record& record, std::string note) override {
    return Count(inner_.Commit(job, record, std::move(note)));
  }
  absl::Status Checkpoint(JobUid job, const DurableState& state, std::string snapshot) override {
    return Count(inner_.Checkpoint(job, state, std::move(snapshot)));
  }
  absl::Status Remove(JobUid job) override { return Count(inner_.Remove(job)); }
  bool Removed(JobUid job) const override { return inner_.Removed(job); }
  absl::StatusOr<StoredJob> LoadJob(JobUid job) const override { return inner_.LoadJob(job); }
  absl::StatusOr<std::vector<JobUid>> ListJobs() const override { return inner_.ListJobs(); }
  absl::Status Sync() override { return absl::OkStatus(); }
  std::uint64_t accepted() const override {
    MutexLock lock(&mu_);
    return accepted_;
  }
  std::uint64_t durable() const override {
    MutexLock lock(&mu_);
    return held_ ? held_at_ : accepted_;
  }
  absl::Status health() const override {
    MutexLock lock(&mu_);
    return health_;
  }
  void SetListener(std::function<void()> listener) override {
    MutexLock lock(&mu_);
    listener_ = std::move(listener);
  }
  bool persistent() const override { return true; }

  void Set(bool held, absl::Status health = absl::OkStatus()) {
    std::function<void()> tell;
    {
      MutexLock lock(&mu_);
      if (held && !held_) held_at_ = accepted_;
      held_ = held;
      health_ = std::move(health);
      tell = listener_;
    }
    if (tell) tell();
  }

 private:
  absl::Status Count(absl::Status status) {
    MutexLock lock(&mu_);
    ++accepted_;
    return status;
  }
  MemoryStateStore inner_{{.persistent = true}};
  mutable Mutex mu_;
  std::uint64_t accepted_ ABSL_GUARDED_BY(mu_) = 0, held_at_ ABSL_GUARDED_BY(mu_) = 0;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status health_ ABSL_GUARDED_BY(mu_);
  std::function<void()> listener_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

TEST_CASE(
    "no message leaves the coordinator before the store holds its cause, and reads do not wait") {
  LateStore late;
  TestCluster c({}, &late);
  TestTask& worker = c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "0", 1));
  REQUIRE(worker.Registered());
  c.AddServer("0", 2);
  late.Set(true);
  runtime::WaitableEvent answered;
  v1::SubmitJobRequest request;
  request.set_yaml(TestCluster::CountingYaml("count"));
  c.channel->Unary(client::ControlMethod<v1::SubmitJobRequest>(), request.SerializeAsString(),
                   std::chrono::seconds(15), [&](absl::StatusOr<std::string>) { answered.Set(); });
  // The job exists and is in the phase describing, and its grant waits until the commit is durable.
  // Each of these calls runs on the control executor after the turn that made the grant.
  REQUIRE(
      c.WaitJob("count", [](const v1::JobStatus& s) { return s.phase() == "describing"; }).ok());
  for (int i = 0; i < 3; ++i) REQUIRE(c.Call<v1::ListJobsResponse>(v1::ListJobsRequest()).ok());
  CHECK_FALSE(answered.IsSet());
  CHECK_FALSE(
      worker.Has([](const v1::CoordinatorMessage& m) { return m.has_grant() || m.has_job(); }));
  late.Set(false);
  CHECK(worker.Wait([](const v1::CoordinatorMessage& m) { return m.has_grant(); }));
  CHECK(answered.WaitFor(std::chrono::seconds(10)));
}

TEST_CASE(
    "while the store is full, submissions and cancels are refused with the reason, and afterwards "
    "all work continues") {
  LateStore late;
  TestCluster c({}, &late);
  c.AddWorker("0", 1);
  c.AddServer("0", 2);
  REQUIRE(c.Submit(TestCluster::CountingYaml("waits")).ok());
  late.Set(true, absl::ResourceExhaustedError("no space for the journal: file=x"));
  auto status = c.WaitJob("waits", [](const v1::JobStatus& s) {
    return s.waiting_for().find("no space") != std::string::npos || s.state() == "SUCCEEDED";
  });
  REQUIRE(status.ok());
  auto refused = c.Submit(TestCluster::CountingYaml("refused"));
  CHECK(refused.status().code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(refused.status().message()),
             Contains("no new work is accepted: no space for the journal"));
  CHECK(OriginOf(refused.status()) == "coordinator");
  if (status->state() != "SUCCEEDED") {
    v1::CancelJobRequest cancel;
    cancel.set_job("waits");
    CHECK_THAT(std::string(c.Call<v1::CancelJobResponse>(cancel).status().message()),
               Contains("no space for the journal"));
  }
  late.Set(false);
  CHECK(c.WaitState("waits", "SUCCEEDED").ok());
  CHECK(c.Submit(TestCluster::CountingYaml("taken")).ok());
}

TEST_CASE(
    "a store that was full and then fails is reported as failed even when there is space again") {
  LateStore late;
  TestCluster c({}, &late);
  const auto refusal = [&](const std::string& says) {
    std::string message;
    for (int i = 0; i < 1000 && message.find(says) == std::string::npos; ++i) {
      const auto answer = c.Submit(TestCluster::CountingYaml("refused-" + std::to_string(i)));
      message = answer.ok() ? "" : std::string(answer.status().message());
    }
    return message;
  };
  late.Set(true, absl::ResourceExhaustedError("no space for the journal"));
  CHECK(refusal("no space") == "no new work is accepted: no space for the journal");
  late.Set(true, absl::DataLossError("the journal cannot be written"));
  CHECK(refusal("cannot be written") == "no new work is accepted: the journal cannot be written");
}

TEST_CASE("a coordinator is not ready while its window is open, but it is live") {
  TestCluster c([](ControlOptions& o) { o.window = std::chrono::hours(1); });
  const std::string text =
      "not ready: window: the tasks of the cluster are registering: window_ms=3600000\n";
  CHECK(c.WaitReady(text) == text);
  CHECK(c.health.Ask(health::Question::kLive).ok);
}

TEST_CASE("a coordinator is ready after its window, except while its journal accepts nothing") {
  LateStore late;
  TestCluster c({}, &late);
  CHECK(c.WaitReady("ok\n") == "ok\n");
  late.Set(true, absl::ResourceExhaustedError("no space for the journal"));
  const std::string full = "not ready: journal: no space for the journal\n";
  CHECK(c.WaitReady(full) == full);
  late.Set(false);
  CHECK(c.WaitReady("ok\n") == "ok\n");
  late.Set(true, absl::DataLossError("the journal cannot be written"));
  const std::string failed = "not ready: journal: the journal cannot be written\n";
  CHECK(c.WaitReady(failed) == failed);
  CHECK(c.health.Ask(health::Question::kLive).ok);
}

TEST_CASE(
    "a worker that has sent only its Hello gets no work and its end is harmless, and its first "
    "message brings work") {
  TestCluster c;
  c.AddServer("0", 1);
  REQUIRE(c.Submit(TestCluster::CountingYaml("count")).ok());
  for (std::uint64_t i = 0; i < 20; ++i) {
    TestTask& silent =
        c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "f" + std::to_string(i), 100 + i), {},
              /*silent=*/true);
    REQUIRE(silent.Registered());
    // This call runs on the control executor after all turns that the registration has caused.
    REQUIRE(c.Call<v1::ListJobsResponse>(v1::ListJobsRequest()).ok());
    CHECK_FALSE(silent.Has([](const v1::CoordinatorMessage& m) { return m.has_grant(); }));
    if (i > 0) silent.Cut();
  }
  auto waits = c.WaitJob("count", [](const v1::JobStatus& s) {
    return s.waiting_for().find("have sent no report") != std::string::npos;
  });
  REQUIRE(waits.ok());
  TestTask& worker = c.AddWorker("0", 2);
  REQUIRE(worker.Wait([](const v1::CoordinatorMessage& m) { return m.has_grant(); }));
  auto status = c.WaitState("count", "SUCCEEDED");
  REQUIRE(status.ok());
  for (const v1::Event& event : status->events()) CHECK_THAT(event.text(), !Contains("worker/f"));
  for (const v1::WorkerRow& row : status->workers()) CHECK_THAT(row.identity(), !Contains("f"));
  // After its first message, the first silent worker must get work of the next job.
  TestTask& first = *c.tasks[1];
  first.Heartbeat();
  worker.Cut();
  REQUIRE(c.Submit(TestCluster::CountingYaml("next")).ok());
  CHECK(first.Wait([](const v1::CoordinatorMessage& m) { return m.has_grant(); }));
}

TEST_CASE(
    "registrations above the limit are refused with the time to retry and counted, and honest "
    "names are unaffected") {
  TestCluster c([](ControlOptions& o) {
    o.membership.tasks_max = 10;
    o.membership.registrations.all_burst = 20;
    o.membership.registrations.all_per_second = 0.001;
    o.membership.registrations.silent_cost = 1;
  });
  TestTask& honest = c.AddWorker("honest", 1);
  REQUIRE(honest.Registered());
  std::optional<v1::Rejected> rejected;
  for (std::uint64_t i = 0; i < 40 && !rejected; ++i) {
    TestTask& silent =
        c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "f", 100 + i), {}, /*silent=*/true);
    REQUIRE(silent.Wait(
        [](const v1::CoordinatorMessage& m) { return m.has_registered() || m.has_rejected(); }));
    if (silent.Has([](const v1::CoordinatorMessage& m) {
          return m.has_rejected() && m.rejected().kind() == "limit";
        }))
      rejected = silent.Rejected();
  }
  REQUIRE(rejected);
  CHECK(rejected->retry_after_ms() > 0);
  CHECK_FALSE(rejected->exit());
  CHECK_THAT(rejected->message(),
             Contains("too many registrations, of all tasks together, in a short time"));
  CHECK_THAT(c.registry.PrometheusText(),
             Contains("evergrad_coordinator_registrations_recent_refused_total 1"));
  // A process that was registered before may register again at any time.
  honest.Cut();
  CHECK(c.AddWorker("honest", 1).Registered());
}

TEST_CASE("two hosts whose workers have one name are both named in an event of the job") {
  TestCluster c;
  c.AddServer("0", 1);
  REQUIRE(c.Submit(TestCluster::CountingYaml("count")).ok());
  for (std::uint64_t i = 0; i < 4; ++i) {
    v1::Hello hello = TestCluster::HelloOf(v1::ROLE_WORKER, "0", 100 + i);
    hello.set_host(i % 2 == 0 ? "host-a" : "host-b");
    REQUIRE(c.Add(hello).Registered());
  }
  auto status = c.WaitJob("count", [](const v1::JobStatus& s) {
    return std::any_of(s.events().begin(), s.events().end(), [](const v1::Event& e) {
      return e.text().find("replace each other") != std::string::npos;
    });
  });
  REQUIRE(status.ok());
  for (const v1::Event& event : status->events()) {
    if (event.text().find("replace each other") == std::string::npos) continue;
    CHECK(event.kind() == "warning");
    CHECK_THAT(event.text(),
               Contains("worker/0") && Contains("on host host-a") && Contains("on host host-b"));
  }
}

TEST_CASE("a cloud's recommendation to leave is an event of the task's job and is listed") {
  TestCluster c;
  TestTask& server = c.AddServer("0", 1);
  REQUIRE(c.Submit(TestCluster::CountingYaml("count")).ok());
  TestTask& worker = c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "0", 2));
  REQUIRE(worker.Registered());
  const auto job = c.WaitJob("count", [](const v1::JobStatus& s) { return s.workers_size() == 1; });
  REQUIRE(job.ok());

  v1::TaskMessage beat;
  beat.mutable_heartbeat()->set_recommendation("leave until 10:00");
  worker.Send(beat);
  worker.Send(beat);
  v1::JobUsage& use = *beat.mutable_heartbeat()->mutable_server()->add_jobs();
  use.set_job_uid(job->job_uid());
  use.set_shards(1);
  server.Send(beat);
  const auto count = [](const v1::JobStatus& s, absl::string_view text) {
    return std::count_if(s.events().begin(), s.events().end(), [&](const v1::Event& e) {
      return e.kind() == "warning" && e.text() == text;
    });
  };
  const auto status = c.WaitJob("count", [&](const v1::JobStatus& s) {
    return count(s, "worker/0: leave until 10:00") + count(s, "ps_server/0: leave until 10:00") > 1;
  });
  REQUIRE(status.ok());
  CHECK(count(*status, "worker/0: leave until 10:00") == 1);
  const auto tasks = c.Call<v1::ListTasksResponse>(v1::ListTasksRequest());
  REQUIRE(tasks.ok());
  REQUIRE(tasks->tasks_size() == 3);
  CHECK(tasks->tasks(0).recommendation().empty());
  CHECK(tasks->tasks(1).recommendation() == "leave until 10:00");
  CHECK(tasks->tasks(2).recommendation() == "leave until 10:00");
}

TEST_CASE(
    "with certificates the proof of a Grant is valid only for the task that the certificate "
    "names") {
  struct Case {
    std::string certificate, identity;
    int adopted;
  };
  const Case of = GENERATE(
      values<Case>({{"worker/1", "1", 0}, {"worker/0", "0", 1}, {"worker", "1", 1}, {"", "1", 1}}));
  CAPTURE(of.certificate);
  auto made = std::make_unique<CertifiedTransport>();
  CertifiedTransport& certificates = *made;
  TestCluster c([](ControlOptions& o) { o.membership.grace = std::chrono::milliseconds(0); },
                nullptr, std::move(made));
  certificates.Certify("worker/0");
  TestTask& first = c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "0", 1),
                          [](TestTask& task, const v1::CoordinatorMessage& m) {
                            if (m.has_grant() && m.grant().kind() == v1::DESCRIBE)
                              TestCluster::Work(task, m);  // afterwards this worker does nothing
                          });
  REQUIRE(first.Registered());
  certificates.Certify("ps_server/0");
  REQUIRE(c.AddServer("0", 2).Registered());
  REQUIRE(c.Submit(TestCluster::CountingYaml("count")).ok());
  const auto granted = first.Wait([](const v1::CoordinatorMessage& m) {
    return m.has_grant() && m.grant().kind() == v1::TRAIN;
  });
  REQUIRE(granted);
  first.Cut();
  REQUIRE(c.WaitJob("count", [](const v1::JobStatus& status) {
             return std::any_of(status.events().begin(), status.events().end(),
                                [](const v1::Event& event) { return event.kind() == "requeue"; });
           }).ok());
  certificates.Certify(of.certificate);
  v1::Hello hello = TestCluster::HelloOf(v1::ROLE_WORKER, of.identity, 9);
  v1::HeldAttempt* held = hello.add_attempts();
  held->set_job_uid(granted->grant().job_uid());
  held->set_closure(granted->grant().closure());
  *held->mutable_attempt() = granted->grant().attempt();
  held->set_kind(v1::TRAIN);
  held->set_all_targets(true);
  held->set_proof(granted->grant().proof());
  held->set_granted_to("0");
  const auto registered = c.Add(hello, TestCluster::Work).Registered();
  REQUIRE(registered);
  CHECK(registered->adopted_size() == of.adopted);
}

TEST_CASE(
    "a worker with a given number is not told to exit when another worker has chosen that number "
    "as its name") {
  TestCluster c;
  TestTask& unnamed = c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "", 1), TestCluster::Work);
  const auto first = unnamed.Registered();
  REQUIRE(first);
  CHECK(first->identity() == "0");
  TestTask& named = c.AddWorker("0", 2);
  REQUIRE(named.Registered());
  const auto rejected = unnamed.Rejected();
  REQUIRE(rejected);
  CHECK(rejected->kind() == "replaced");
  CHECK_FALSE(rejected->exit());
  v1::Hello again = TestCluster::HelloOf(v1::ROLE_WORKER, "0", 1);
  again.set_numbered(true);
  const auto second = c.Add(again, TestCluster::Work).Registered();
  REQUIRE(second);
  CHECK(second->identity() == "1");
  CHECK_FALSE(named.Has([](const v1::CoordinatorMessage& m) { return m.has_rejected(); }));
}

TEST_CASE("a worker whose certificate names it is not renumbered, whatever its Hello says") {
  auto made = std::make_unique<CertifiedTransport>();
  CertifiedTransport& certificates = *made;
  TestCluster c({}, nullptr, std::move(made));
  certificates.Certify("worker/7");
  TestTask& first = c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "", 1), TestCluster::Work);
  REQUIRE(first.Registered());
  CHECK(first.Registered()->identity() == "7");
  v1::Hello numbered = TestCluster::HelloOf(v1::ROLE_WORKER, "7", 2);
  numbered.set_numbered(true);
  TestTask& second = c.Add(numbered, TestCluster::Work);
  REQUIRE(second.Registered());
  CHECK(second.Registered()->identity() == "7");
  const auto rejected = first.Rejected();
  REQUIRE(rejected);
  CHECK(rejected->exit());
}

TEST_CASE("a Hello with more attempts than a worker can hold is refused") {
  TestCluster c;
  v1::Hello hello = TestCluster::HelloOf(v1::ROLE_WORKER, "0", 1);
  for (int i = 0; i < client::kHeldAttemptsMax; ++i) hello.add_attempts()->set_job_uid(7);
  TestTask& most = c.Add(hello);
  CHECK(most.Registered());
  hello.set_identity("1");
  hello.set_process_uid(2);
  hello.add_attempts();
  const auto rejected = c.Add(hello).Rejected();
  REQUIRE(rejected);
  CHECK(rejected->kind() == "malformed");
}

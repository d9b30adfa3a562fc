// Tests workers that cannot reach a server: the rule alone, and a job that follows it.
#include <catch2/catch.hpp>

#include "tests/unit/coordinator/jobs/job_fixture.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;

ReachRule::Said Unreached(const std::string& server, std::uint64_t for_ms) {
  ReachRule::Said said;
  v1::UnreachedServer* one = said.Add();
  one->set_server(server);
  one->set_address("127.0.0.1:4001");
  one->set_for_ms(for_ms);
  one->set_reason("connection refused");
  return said;
}

TEST_CASE(
    "a worker is cut off after a period of silence within the server's session, and only from a "
    "needed server") {
  ReachRule rule(milliseconds(5000));
  const ReachRule::Said said = Unreached("0", 5000);
  const auto cut_off = [&](const ReachRule::Said& by, int at_ms) {
    return rule.FindUnreached(by, milliseconds(at_ms)) != nullptr;
  };
  CHECK_FALSE(cut_off(said, 0));  // the rule has not heard of the server yet
  rule.Server("0", TaskId(1), true, true, milliseconds(0));
  CHECK_FALSE(cut_off(said, 4999));
  CHECK_FALSE(cut_off(Unreached("0", 4999), 6000));
  CHECK(cut_off(said, 5000));
  CHECK_FALSE(cut_off(Unreached("1", 9000), 6000));
  // The time starts anew when the server registers again or comes back, because no worker could
  // reach the server while it was disconnected.
  rule.Server("0", TaskId(2), true, true, milliseconds(6000));
  CHECK_FALSE(cut_off(said, 10'999));
  CHECK(cut_off(said, 11'000));
  rule.Server("0", TaskId(2), false, true, milliseconds(12'000));
  CHECK_FALSE(cut_off(said, 20'000));
  rule.Server("0", TaskId(2), true, true, milliseconds(20'000));
  CHECK_FALSE(cut_off(said, 24'999));
  rule.Server("0", TaskId(2), true, false, milliseconds(25'000));  // the server now owns no shard
  CHECK_FALSE(cut_off(said, 30'000));
  CHECK(ReachRule(milliseconds(0)).FindUnreached(said, seconds(100)) == nullptr);
}

TEST_CASE("a worker's report about servers is bounded and cleaned") {
  ReachRule::Said said;
  for (int i = 0; i < 1000; ++i) *said.Add() = Unreached(std::string(5000, 'a') + "\n", 1)[0];
  ReachRule::Clean(&said);
  CHECK(said.size() == 64);
  for (const v1::UnreachedServer& one : said) CHECK(one.ByteSizeLong() < 500);
  CHECK(ReachRule::Text(Unreached("1", 12'400)[0]) ==
        "ps_server/1 at 127.0.0.1:4001 for 12 s (connection refused)");
}

// Worker 0 never gets an answer from server 0, and reports this four times a second. All other
// workers finish their closures.
struct Stage {
  FakeCluster c;
  std::map<std::uint64_t, MonoTime> since;  // the times at which worker 0 got each attempt
  bool mended = false;
  explicit Stage(std::function<void(config::JobSpec&, JobOptions&)> change = {})
      : c(std::move(change)) {
    c.hold = [this](const FakeWorker& w, const v1::Grant& g) {
      return !mended && w.identity == "0" && g.kind() != v1::DESCRIBE;
    };
    c.AddWorker("0");
  }
  void Beat() {
    FakeWorker& worker = c.workers.at("0");
    if (worker.held.empty()) return;
    const v1::Grant& grant = worker.held.front();
    const MonoTime begun = since.try_emplace(grant.attempt().n(), c.host.clock.Now()).first->second;
    v1::TaskMessage message;
    v1::WorkerProgress* progress = message.mutable_heartbeat()->mutable_worker();
    progress->set_job_uid(grant.job_uid());
    progress->set_state("running");
    progress->set_running_closure(grant.closure());
    *progress->mutable_running_attempt() = grant.attempt();
    const auto ms = std::chrono::duration_cast<milliseconds>(c.host.clock.Now() - begun).count();
    *progress->mutable_unreached() = Unreached("0", static_cast<std::uint64_t>(ms));
    c.Say(worker.task, message);
  }
  bool Run(const std::function<bool()>& until, milliseconds limit) {
    return c.Run(
        [&] {
          if (c.host.clock.Now() % milliseconds(250) == MonoTime{0}) Beat();
          return until();
        },
        limit);
  }
  std::size_t Events(const std::string& text) const {
    std::size_t n = 0;
    const v1::JobStatus status = c.Status();
    for (const v1::Event& event : status.events())
      n += event.text().find(text) != std::string::npos;
    return n;
  }
};

TEST_CASE(
    "a closure of a worker that cannot reach a server goes to one that can, and job show names "
    "both ends") {
  Stage stage;
  FakeCluster& c = stage.c;
  c.AddServer("0");
  c.job->Start();
  REQUIRE(stage.Run(
      [&] {
        return !c.workers.at("0").held.empty() &&
               c.workers.at("0").held.front().kind() == v1::TRAIN;
      },
      seconds(5)));
  c.AddWorker("1");
  const MonoTime begun = c.host.clock.Now();
  REQUIRE(stage.Run([&] { return c.job->ended(); }, seconds(60)));
  CHECK(c.job->state() == JobState::kSucceeded);
  CHECK(c.host.clock.Now() - begun < seconds(30));
  CHECK(c.Status().closures_succeeded() == 16);
  CHECK(stage.Events(
            "worker/0 cannot take part in the job and is tried again from time to time: it cannot "
            "reach ps_server/0 at 127.0.0.1:4001 for 5 s "
            "(connection refused); its work goes to workers that can") == 1);
  CHECK(stage.since.size() >= 1);
  CHECK(stage.since.size() <= 5);  // tried again after 1, 2, 4 and more seconds
}

TEST_CASE("while a worker is cut off its row names the server, until it has finished work again") {
  Stage stage;
  FakeCluster& c = stage.c;
  bool holds = true;
  c.hold = [&](const FakeWorker& w, const v1::Grant& g) {
    return g.kind() == v1::TRAIN &&
           ((!stage.mended && w.identity == "0") || (holds && g.closure() >= 4));
  };
  c.AddWorker("1");
  c.AddServer("0");
  c.job->Start();
  const auto row = [&](const std::string& identity) {
    const v1::JobStatus status = c.Status();
    for (const v1::WorkerRow& one : status.workers()) {
      if (one.identity() == identity) return one;
    }
    return v1::WorkerRow();
  };
  REQUIRE(stage.Run([&] { return row("0").state() == "unfit"; }, seconds(20)));
  REQUIRE(row("0").unreached_size() == 1);
  CHECK(row("0").unreached(0).server() == "0");
  CHECK(row("0").unreached(0).address() == "127.0.0.1:4001");
  CHECK(row("1").unreached_size() == 0);
  stage.mended = true;
  holds = false;
  c.FinishHeld(c.workers.at("1"));
  REQUIRE(c.Run([&] { return c.job->ended(); }, seconds(60)));
  CHECK(row("0").unreached_size() == 0);
}

TEST_CASE("a job whose workers all wait for answers names the servers, until a worker continues") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  c.AddWorker("0");
  c.AddWorker("1");
  c.AddServer("0");
  c.job->Start();
  const auto holds = [&](const char* worker) { return !c.workers.at(worker).held.empty(); };
  REQUIRE(c.Run([&] { return holds("0") && holds("1"); }, seconds(5)));
  const auto beat = [&](const char* identity, const std::string& awaits) {
    const FakeWorker& worker = c.workers.at(identity);
    v1::TaskMessage message;
    v1::WorkerProgress* progress = message.mutable_heartbeat()->mutable_worker();
    progress->set_job_uid(worker.held.front().job_uid());
    progress->set_state("running");
    progress->set_awaits(awaits);
    c.Say(worker.task, message);
    c.Deliver();
  };
  beat("0", "ps_server/0 for 7 s");
  CHECK(c.job->WaitingFor().empty());
  beat("1", "ps_server/0 for 3 s");
  CHECK(
      c.job->WaitingFor() ==
      "an answer to worker/0 by ps_server/0 for 7 s, an answer to worker/1 by ps_server/0 for 3 s");
  beat("0", "");
  CHECK(c.job->WaitingFor().empty());
}

TEST_CASE(
    "while no worker can reach a server no closure is passed on, and the job reports the server "
    "for which it waits") {
  Stage stage;
  FakeCluster& c = stage.c;
  c.AddServer("0");
  c.job->Start();
  CHECK_FALSE(stage.Run([&] { return c.job->ended(); }, seconds(30)));
  CHECK(c.Status().waiting_for().find("worker/0 to reach ps_server/0 at 127.0.0.1:4001 for ") == 0);
  CHECK(stage.Events("and no other connected worker can do its work: the job waits") == 1);
  CHECK(stage.since.size() == 1);
  stage.mended = true;
  c.FinishHeld(c.workers.at("0"));
  REQUIRE(c.Run([&] { return c.job->ended(); }, seconds(60)));
  CHECK(c.job->state() == JobState::kSucceeded);
}

// A functions job with one variable. Worker 0 has the functions `f` and `g`.
struct FunctionsStage : Stage {
  FunctionsStage()
      : Stage([](config::JobSpec& spec, JobOptions&) {
          spec.type = "functions";
          config::FunctionVariable weights;
          weights.name = "weights";
          weights.shape = {8, 2};
          spec.functions.variables = {weights};
          spec.optimizer = {};
        }) {
    c.workers.clear();
    c.job->OnWorkerGone(TaskId(1), "it has no functions", true);
    Add("0", {"f", "g"});
    c.AddServer("0");
    c.on_done = [](const v1::Grant& grant, v1::Done* done) {
      if (grant.kind() == v1::TRAIN) done->mutable_metrics()->clear_step_records();
    };
  }
  void Add(const std::string& identity, const std::vector<std::string>& functions) {
    v1::Hello hello;
    for (const std::string& name : functions) hello.add_functions(name);
    c.AddWorker(identity, hello);
  }
  void Schedule(const std::string& function) {
    v1::ScheduleClosureRequest request;
    request.mutable_call()->set_client(9);
    request.mutable_call()->set_call(++calls);
    request.mutable_call()->set_answered_below(calls);
    request.set_function(function);
    std::string waiting;
    const auto answer = c.function_calls().Schedule(request, &waiting);
    REQUIRE(answer);
    REQUIRE(answer->ok());
  }
  std::uint64_t calls = 0;
};

TEST_CASE(
    "the only worker with a function keeps its work, and the job reports the server that it cannot "
    "reach") {
  const bool another_has_it = GENERATE(false, true);
  CAPTURE(another_has_it);
  FunctionsStage stage;
  FakeCluster& c = stage.c;
  c.job->Start();
  REQUIRE(c.Run([&] { return c.job->state() == JobState::kRunning; }, seconds(5)));
  stage.Schedule("g");
  REQUIRE(stage.Run([&] { return !c.workers.at("0").held.empty(); }, seconds(5)));
  stage.Add("1", another_has_it ? std::vector<std::string>{"g"} : std::vector<std::string>{"f"});
  stage.Run([&] { return false; }, seconds(8));
  const char* const passed_on = "its work goes to workers that can";
  const char* const said = "worker/0 cannot reach ps_server/0 at 127.0.0.1:4001";
  if (another_has_it) {
    CHECK(c.Status().closures_succeeded() == 1);
    CHECK(stage.Events(passed_on) == 1);
    return;
  }
  CHECK(c.Status().closures_succeeded() == 0);
  CHECK(stage.Events(passed_on) == 0);
  CHECK(stage.Events("and no other connected worker can do its work: the job waits") == 1);
  CHECK(stage.Events(said) == 1);
  CHECK(stage.since.size() == 1);
  REQUIRE(c.workers.at("0").held.size() == 1);
  CHECK_THAT(c.Status().waiting_for(), Contains("worker/0 to reach ps_server/0"));
  c.FinishHeld(c.workers.at("0"));  // the worker reaches the server again and finishes
  c.Deliver();
  CHECK(c.Status().closures_succeeded() == 1);
}

TEST_CASE("a worker's stuck closure stays with it while the only other worker gets no work") {
  Stage stage;
  FakeCluster& c = stage.c;
  c.AddServer("0");
  c.job->Start();
  REQUIRE(stage.Run([&] { return !c.workers.at("0").held.empty(); }, seconds(5)));
  // Membership's rule makes worker 1 back off for a minute.
  v1::Registered registered;
  const TaskId task(c.next_task++);
  c.job->AdmitWorker(task, "1", c.host.clock.Now() + seconds(60), std::nullopt, false, v1::Hello(),
                     &registered);
  c.job->Ready(task);
  stage.Run([&] { return false; }, seconds(20));
  CHECK(stage.since.size() == 1);
  CHECK(stage.Events("and no other connected worker can do its work: the job waits") == 1);
}

TEST_CASE("a worker is not blamed for a disconnected server") {
  Stage stage;
  FakeCluster& c = stage.c;
  c.AddWorker("1");
  c.AddServer("0");
  c.hold = [&](const FakeWorker&, const v1::Grant& g) {
    return !stage.mended && g.kind() == v1::TRAIN;
  };
  c.job->Start();
  REQUIRE(stage.Run([&] { return !c.workers.at("0").held.empty(); }, seconds(5)));
  c.job->OnServerAway(c.servers.at("0").task, "its session closed");
  CHECK_FALSE(stage.Run([&] { return stage.Events("cannot reach") > 0; }, seconds(20)));
  stage.mended = true;
  c.AddServer("0", true);
  for (const char* identity : {"0", "1"}) c.FinishHeld(c.workers.at(identity));
  REQUIRE(c.Run([&] { return c.job->ended(); }, seconds(60)));
}

}  // namespace
}  // namespace evergrad::coordinator

// Tests how a job treats deaths of tasks: which deaths count, when they end the job, and which
// tasks get no work for a while.
#include <catch2/catch.hpp>

#include "job_fixture.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;

bool Trains(const v1::Grant& g) { return g.kind() == v1::TRAIN; }

std::function<void(config::JobSpec&, JobOptions&)> DeathsMax(std::uint32_t max,
                                                             std::uint32_t examples = 64) {
  return [=](config::JobSpec& spec, JobOptions& options) {
    options.deaths_max = max;
    spec.counting.examples = examples;
  };
}

void Wait(FakeCluster& c, milliseconds span) {
  c.Run([] { return false; }, span);
}

bool Holds(const FakeWorker& worker) { return !worker.held.empty(); }

std::vector<std::string> Events(const FakeCluster& c, const std::string& kind,
                                const std::string& words = "") {
  std::vector<std::string> texts;
  const v1::JobStatus status = c.Status();
  for (const v1::Event& event : status.events()) {
    if (event.kind() == kind && event.text().find(words) != std::string::npos)
      texts.push_back(event.text());
  }
  return texts;
}

// Kills a worker while it holds closures and before it has reported any progress. No closure is
// therefore blamed for the death.
void KillWithWork(FakeCluster& c, const std::string& name) {
  FakeWorker& worker = c.AddWorker(name);
  REQUIRE(c.Run([&] { return Holds(worker); }));
  c.KillWorker(name);
  Wait(c, milliseconds(500));
}

}  // namespace

TEST_CASE("any number of workers may die in a job that advances between the deaths") {
  FakeCluster c(DeathsMax(5, 640));
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
  c.AddServer("0");
  c.AddWorker("steady");
  c.job->Start();
  REQUIRE(c.Run([&] { return Holds(c.workers["steady"]); }));
  for (int i = 0; i < 40; ++i) {
    KillWithWork(c, std::to_string(i));
    INFO(c.Status().first_cause().message());
    REQUIRE_FALSE(c.job->ended());
    FakeWorker& steady = c.workers["steady"];
    c.Finish(steady, v1::Grant(steady.held[0]));
  }
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.FinishHeld(c.workers["steady"]);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
}

TEST_CASE(
    "a job that does not advance while its tasks die fails, and the message names the option") {
  FakeCluster c(DeathsMax(5));
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
  c.AddServer("0");
  c.job->Start();
  for (int i = 0; i < 5; ++i) KillWithWork(c, std::to_string(i));
  REQUIRE_FALSE(c.job->ended());
  KillWithWork(c, "last");
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kFailed);
  CHECK_THAT(c.Status().first_cause().message(),
             Contains("--deaths-max") && Contains("deaths=6 max=5"));
}

TEST_CASE("the count of deaths continues after a restart of the coordinator") {
  MemoryStateStore::Options persistent;
  persistent.persistent = true;
  FakeCluster c(DeathsMax(5), persistent);
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
  c.AddServer("0");
  c.job->Start();
  for (int i = 0; i < 5; ++i) KillWithWork(c, std::to_string(i));
  c.Restart();
  Wait(c, milliseconds(500));
  REQUIRE_FALSE(c.job->ended());
  KillWithWork(c, "last");
  REQUIRE(c.RunToEnd());
  CHECK_THAT(c.Status().first_cause().message(), Contains("deaths=6 max=5"));
}

TEST_CASE("deaths of tasks without work of the job do not count against it") {
  FakeCluster c([](config::JobSpec& spec, JobOptions& options) {
    options.deaths_max = 2;
    spec.training.epochs = 1;
  });
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
  c.AddServer("0");
  c.AddWorker("steady");
  c.job->Start();
  REQUIRE(c.Run([&] { return Holds(c.workers["steady"]); }));
  for (int i = 0; i < 10; ++i) {
    v1::Registered registered;
    const TaskId task(5000 + static_cast<std::uint64_t>(i));
    // Half of the workers may not work yet because of membership's backoff, and the other half have
    // just registered.
    c.job->AdmitWorker(task, "idle-" + std::to_string(i),
                       c.host.clock.Now() + milliseconds(i % 2 == 0 ? 0 : 60'000), std::nullopt,
                       false, {}, &registered);
    if (i % 2 == 1) c.job->Ready(task);
    c.job->OnWorkerGone(task, "its session closed", false);
    c.AddServer("idle-" + std::to_string(i));
    c.job->OnServerLost(c.servers["idle-" + std::to_string(i)].task, "idle-" + std::to_string(i),
                        "gone", false);
    c.servers.erase("idle-" + std::to_string(i));
    Wait(c, milliseconds(500));
  }
  REQUIRE_FALSE(c.job->ended());
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.FinishHeld(c.workers["steady"]);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
}

TEST_CASE(
    "a worker in a crash loop gets work ever more rarely beside a steady one, the job reports it, "
    "and succeeds") {
  FakeCluster c(DeathsMax(20, 8 * 400));
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
  c.AddServer("0");
  c.AddWorker("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return Holds(c.workers["0"]); }));
  std::vector<MonoTime> given;
  for (int life = 0; life < 300; ++life) {
    c.AddWorker("2");
    Wait(c, milliseconds(350));
    if (Holds(c.workers["2"])) given.push_back(c.host.clock.Now());
    c.KillWorker("2");
    Wait(c, milliseconds(50));
    REQUIRE_FALSE(c.job->ended());
    FakeWorker& steady = c.workers["0"];
    if (life % 2 == 0) c.Finish(steady, v1::Grant(steady.held[0]));
  }
  // The first three deaths cause no backoff. The next ones cause backoffs of 1, 2, 4, 8, 16, 32 and
  // 60 s, so only few deaths fit into 120 s.
  CHECK(given.size() >= 8);
  CHECK(given.size() <= 10);
  for (std::size_t i = 4; i < given.size(); ++i) {
    INFO(i);
    CHECK(given[i] - given[i - 1] >= std::chrono::seconds(1 << (i - 4)));
  }
  const v1::JobStatus status = c.Status();
  REQUIRE(status.backing_off_size() == 1);
  const v1::TaskBackoff& row = status.backing_off(0);
  CHECK(row.task() == "worker/2");
  CHECK(row.deaths() == given.size());
  CHECK(row.idle_deaths() > 10);
  CHECK(row.for_ms() > 0);
  CHECK(row.reason() == "its session closed");
  // The worker's 300 deaths must not displace all other events.
  CHECK(Events(c, "death", "worker/2").size() == given.size());
  CHECK(Events(c, "warning", "worker/2 has died").size() == given.size() - 3);
  CHECK_THAT(Events(c, "warning", "worker/2 has died")[0],
             Contains("4 times in a row") && Contains("gets no work for 1 s"));
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.FinishHeld(c.workers["0"]);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  CHECK(c.Status().backing_off_size() == 0);
}

TEST_CASE("a worker gets work as soon as its back-off ends, and finished work clears its record") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
  c.AddServer("0");
  c.job->Start();
  for (int i = 0; i < 4; ++i) {
    FakeWorker& worker = c.AddWorker("0");
    REQUIRE(c.Run([&] { return Holds(worker); }));
    c.KillWorker("0");
  }
  const MonoTime died = c.host.clock.Now();
  FakeWorker& worker = c.AddWorker("0");
  Wait(c, milliseconds(900));
  CHECK_FALSE(Holds(worker));
  CHECK_THAT(c.job->WaitingFor(), Contains("worker/0 for 0.1 s"));
  REQUIRE(c.Run([&] { return Holds(worker); }));
  CHECK(c.host.clock.Now() - died >= milliseconds(1000));
  CHECK(c.host.clock.Now() - died <= milliseconds(1100));
  // The worker has completed no closure since its deaths.
  CHECK(c.Status().backing_off_size() == 1);
  c.Finish(worker, v1::Grant(worker.held[0]));
  CHECK(c.Status().backing_off_size() == 0);
}

TEST_CASE(
    "a worker without a message after its Hello gets no work, and its end does not affect the "
    "job") {
  FakeCluster c(DeathsMax(3));
  c.AddServer("0");
  c.job->Start();
  const std::size_t events = Events(c, "death").size() + Events(c, "requeue").size();
  for (std::uint64_t i = 0; i < 130; ++i) {
    v1::Registered registered;
    v1::Hello hello;
    hello.set_process_uid(7000 + i);
    c.job->AdmitWorker(TaskId(7000 + i), "f" + std::to_string(i), MonoTime{0}, std::nullopt, false,
                       hello, &registered);
    c.job->Withhold(TaskId(7000 + i));
    c.job->Ready(TaskId(7000 + i));
    c.job->Tick();
    CHECK_THAT(c.job->WaitingFor(), Contains("sent no report since they registered"));
    c.job->OnWorkerGone(TaskId(7000 + i), "its session closed", false);
    Wait(c, milliseconds(25));
  }
  CHECK(c.granted.empty());
  CHECK(Events(c, "death").size() + Events(c, "requeue").size() == events);
  CHECK(c.Status().workers_size() == 0);
  REQUIRE_FALSE(c.job->ended());
  FakeWorker& worker = c.AddWorker("0");
  c.job->Withhold(worker.task);
  Wait(c, milliseconds(100));
  // The worker was Ready before Withhold, so it may still hold grants. From Withhold on it gets no
  // grant until its first message.
  const std::size_t granted = c.granted.size();
  c.job->Speaks(worker.task);
  c.job->Speaks(worker.task);
  REQUIRE(c.RunToEnd());
  CHECK(c.granted.size() > granted);
  CHECK(c.job->state() == JobState::kSucceeded);
}

// worker/0 gets closures and does not finish them.
void BeginHolding(FakeCluster& c, std::initializer_list<const char*> servers) {
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
  c.AddWorker("0");
  for (const char* server : servers) c.AddServer(server);
  c.job->Start();
  REQUIRE(c.Run([&] { return Holds(c.workers["0"]); }));
}

TEST_CASE(
    "a server that dies repeatedly gets no shards for a while, another gets them, and the job "
    "continues") {
  FakeCluster c(DeathsMax(20));
  BeginHolding(c, {"0", "1"});
  REQUIRE(c.servers["1"].shards.size() == 2);
  for (int life = 0; life < 3; ++life) {
    c.AddServer("1");
    Wait(c, milliseconds(500));
    REQUIRE(c.servers["1"].shards.size() == 2);
  }
  c.AddServer("1");  // this is the fourth death of server 1
  CHECK(c.Run([&] { return c.servers["0"].shards.size() == 4; }));
  CHECK(c.servers["1"].shards.empty());
  REQUIRE(c.Status().backing_off_size() == 1);
  CHECK(c.Status().backing_off(0).task() == "ps_server/1");
  CHECK_THAT(Events(c, "rollback", "backs off")[0],
             Contains("2 shards are reassigned to other servers"));
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.FinishHeld(c.workers["0"]);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
}

TEST_CASE("a server that keeps dying without shards causes no events and stays in the list") {
  FakeCluster c(DeathsMax(20, 640));
  BeginHolding(c, {"0", "1"});
  const auto die = [&] {
    c.job->OnServerAway(c.servers["1"].task, "its session closed");
    c.AddServer("1");
  };
  for (int life = 0; life < 4; ++life) {
    die();
    Wait(c, milliseconds(500));
  }
  REQUIRE(c.servers["1"].shards.empty());
  const std::string before = AllEvents(c);
  const std::size_t deaths = Events(c, "death").size();
  CHECK(deaths == 4);
  for (int life = 0; life < 30; ++life) {
    Wait(c, milliseconds(1500));  // longer than the server's backoff
    FakeWorker& worker = c.workers["0"];
    c.Finish(worker, v1::Grant(worker.held[0]));  // the worker makes progress meanwhile
    die();
  }
  CHECK(AllEvents(c) == before);
  REQUIRE(c.Status().backing_off_size() == 1);
  CHECK(c.Status().backing_off(0).task() == "ps_server/1");
  CHECK(c.Status().backing_off(0).deaths() == 4);
  CHECK(c.Status().backing_off(0).idle_deaths() == 30);
  CHECK(c.Status().backing_off(0).for_ms() > 0);
  // A server's backoff ends when a closure succeeds after the server has stayed alive and owns
  // shards again.
  Wait(c, milliseconds(1500));
  c.job->OnServerLost(c.servers["0"].task, "0", "gone", false);
  c.servers.erase("0");
  REQUIRE(c.Run([&] { return c.servers["1"].shards.size() == 4; }));
  CHECK(c.Status().backing_off_size() == 1);
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.FinishHeld(c.workers["0"]);
  Wait(c, milliseconds(50));
  CHECK(c.Status().backing_off_size() == 0);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
}

TEST_CASE(
    "the only server of a job gets its shards back when its back-off ends, and the job reports the "
    "remaining time") {
  FakeCluster c(DeathsMax(20));
  BeginHolding(c, {"0"});
  for (int life = 0; life < 4; ++life) {
    c.AddServer("0");
    Wait(c, milliseconds(400));
  }
  CHECK(c.servers["0"].shards.empty());
  CHECK_THAT(c.job->WaitingFor(),
             Contains("ps_server/0 backs off for 0.6 s after repeated deaths"));
  REQUIRE(c.Run([&] { return c.servers["0"].shards.size() == 4; }));
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.FinishHeld(c.workers["0"]);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  CHECK(c.Status().backing_off_size() == 0);
}

TEST_CASE(
    "a server that is lost repeatedly before its repairs are done ends the job, although repairs "
    "succeed") {
  FakeCluster c(DeathsMax(10));
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g) && g.closure() >= 8; };
  c.AddWorker("0");
  c.AddServer("0");
  c.AddServer("1");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() == 8; }));
  // From here on only two of the eight repairs succeed in each life of the server.
  int repairs = 0;
  c.hold = [&](const FakeWorker&, const v1::Grant& g) {
    return Trains(g) && (g.all_targets() || ++repairs > 2);
  };
  for (int life = 0; life < 40 && !c.job->ended(); ++life) {
    repairs = 0;
    c.workers["0"].held.clear();
    const std::string name = "1";
    c.AddServer(name);
    Wait(c, milliseconds(500));
    // The new process of worker 0 gives back the work that the old process held.
    const TaskId task = c.AddWorker("0").task;
    (void)task;
    Wait(c, milliseconds(500));
    c.Run([&] { return c.job->ended() || c.servers["1"].shards.size() == 2; },
          std::chrono::seconds(70));
  }
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kFailed);
  CHECK_THAT(c.Status().first_cause().message(), Contains("made no progress"));
}

}  // namespace evergrad::coordinator

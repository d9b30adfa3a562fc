// Tests a job from its submission to its end, with scripted tasks that answer at once. The tests
// check the job's grants, their times, and its reports.
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "coordinator/jobs/training_rate.h"
#include "job_fixture.h"

using namespace evergrad;
using namespace evergrad::coordinator;
using Parsed = nlohmann::json;

namespace {

bool Trains(const v1::Grant& g) { return g.kind() == v1::TRAIN; }

}  // namespace

TEST_CASE("a job describes, places, trains, evaluates, exports, reports and succeeds") {
  FakeCluster c;
  c.AddWorker("0");
  c.AddWorker("1");
  c.AddServer("0");
  c.AddServer("1");
  c.job->Start();
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  // 64 examples in batches of 4, with 2 steps per closure, make 8 closures in each of 2 epochs.
  // Each closure must be granted exactly once.
  std::map<std::uint64_t, int> times;
  int evaluations = 0, exports = 0, describes = 0;
  for (const v1::Grant& g : c.granted) {
    if (Trains(g)) ++times[g.closure()];
    evaluations += g.kind() == v1::EVALUATE;
    exports += g.kind() == v1::EXPORT;
    describes += g.kind() == v1::DESCRIBE;
  }
  REQUIRE(times.size() == 16);
  for (const auto& [closure, n] : times) CHECK(n == 1);
  CHECK(describes == 1);
  CHECK(evaluations == 16);  // 8 evaluation closures after each epoch
  CHECK(exports == 1);
  const v1::JobStatus status = c.Status();
  CHECK(status.closures_succeeded() == 16);
  CHECK(status.steps_done() == 32);
  CHECK(status.attempts() == 16);
  CHECK(status.epoch_rows_size() == 2);
  CHECK(status.epoch_rows(1).counting_sum() == 8 * 7);
  CHECK(std::count_if(status.events().begin(), status.events().end(), [](const v1::Event& e) {
          return e.text() == "weights written on host far: /runs/fake/weights.npz";
        }) == 1);
  for (auto& [identity, server] : c.servers) CHECK(server.ended);
  for (auto& [identity, worker] : c.workers) CHECK(worker.ended_state == "SUCCEEDED");
}

TEST_CASE(
    "result.json has exactly the documented keys, and the files exist before the state is "
    "reported") {
  FakeCluster c;
  c.AddWorker("0");
  c.AddServer("0");
  c.AddServer("1");
  c.job->Start();
  REQUIRE(
      c.Run([&] { return c.host.files.count("/runs/fake/result.json") != 0 || c.job->ended(); }));
  REQUIRE(c.RunToEnd());
  const Parsed result = Parsed::parse(c.host.files.at("/runs/fake/result.json"));
  std::set<std::string> keys;
  for (const auto& [key, value] : result.items()) keys.insert(key);
  CHECK(keys == std::set<std::string>{"schema_version",
                                      "name",
                                      "uid",
                                      "start",
                                      "end",
                                      "seconds",
                                      "state",
                                      "first_cause",
                                      "metrics",
                                      "examples_per_second",
                                      "tasks",
                                      "closures",
                                      "duplicates_refused",
                                      "lost",
                                      "repair",
                                      "checkpoint",
                                      "checkpoint_trouble",
                                      "resumed_from",
                                      "lines_lost",
                                      "deaths",
                                      "tables",
                                      "shards",
                                      "updates_exact",
                                      "files"});
  CHECK(result["state"] == "SUCCEEDED");
  CHECK(result["first_cause"].is_null());
  CHECK(result["metrics"]["count"] == 56);
  CHECK(result["closures"] ==
        Parsed{{"succeeded", 16}, {"failed", 0}, {"cancelled", 0}, {"attempts", 16}});
  CHECK(result["duplicates_refused"] == 4);
  REQUIRE(result["shards"].size() == 4);
  std::set<std::string> shard_keys;
  for (const auto& [key, value] : result["shards"][0].items()) shard_keys.insert(key);
  CHECK(shard_keys == std::set<std::string>{"shard", "variable", "rows", "bytes", "server", "lsn",
                                            "updates_applied"});
  REQUIRE(result["tasks"].size() == 3);
  std::set<std::string> task_keys;
  for (const auto& [key, value] : result["tasks"][0].items()) task_keys.insert(key);
  CHECK(task_keys == std::set<std::string>{"role", "identity", "steps", "bytes"});
  CHECK(result["tasks"][0]["steps"] == 32);
  CHECK(c.host.files.at("/runs/fake/job.yaml") == "yaml: here\n");
  const std::string& page = c.host.files.at("/runs/fake/report.html");
  CHECK(page.find("http://") == std::string::npos);
  CHECK(page.find("https://") == std::string::npos);
  CHECK(page.find("\"loss_by_step\":[[0.0,1.0]") != std::string::npos);
  CHECK(page.find("counting/samples") != std::string::npos);
  // metrics.jsonl has one JSON object per line, and each step once.
  std::istringstream lines(c.host.files.at("/runs/fake/metrics.jsonl"));
  std::set<std::uint64_t> steps;
  int epochs = 0;
  for (std::string line; std::getline(lines, line);) {
    const Parsed json = Parsed::parse(line);
    if (json["kind"] == "step") CHECK(steps.insert(json["step"].get<std::uint64_t>()).second);
    epochs += json["kind"] == "epoch";
  }
  CHECK(steps.size() == 32);
  CHECK(epochs == 2);
}

TEST_CASE("result.json names the job and states its start and end in UTC and its duration") {
  FakeCluster c;
  FakeWorker& worker = c.AddWorker("0");
  c.AddServer("0");
  c.host.clock.Advance(std::chrono::milliseconds(1234));
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g) && g.closure() == 0; };
  c.job->Start();
  REQUIRE(c.Run([&] { return !worker.held.empty(); }));
  c.host.clock.Advance(std::chrono::seconds(60));
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.Finish(worker, worker.held.front());
  REQUIRE(c.RunToEnd());
  const Parsed result = Parsed::parse(c.host.files.at("/runs/fake/result.json"));
  CHECK(result["name"] == "fake");
  CHECK(result["uid"] == JobUidString(c.job->uid()));
  // The fixture's wall clock begins at 1,700,000,000,000 ms.
  CHECK(result["start"] == "2023-11-14T22:13:21.234Z");
  CHECK_THAT(result["end"].get<std::string>(),
             Catch::Matches("2023-11-14T22:14:2[0-9]\\.[0-9]{3}Z"));
  CHECK(result["seconds"].get<double>() >= 60);
  CHECK(result["seconds"].get<double>() < 69);
}

TEST_CASE("the result of a job that was cancelled before it began has no start and took no time") {
  FakeCluster c;
  c.job->Cancel();
  REQUIRE(c.RunToEnd());
  const Parsed result = Parsed::parse(c.host.files.at("/runs/fake/result.json"));
  CHECK(result["state"] == "CANCELLED");
  CHECK(result["start"].is_null());
  CHECK(result["end"].is_string());
  CHECK(result["seconds"] == 0);
}

TEST_CASE("epochs that are too short to time have no speed") {
  FakeCluster c;  // the workers of this fixture finish their work at once
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.RunToEnd());
  int untimed = 0;
  const v1::JobStatus status = c.Status();
  for (const v1::EpochRow& row : status.epoch_rows()) {
    if (row.seconds() >= kTimedSecondsMin) continue;
    ++untimed;
    CHECK(std::isnan(row.examples_per_second()));
  }
  CHECK(untimed > 0);
  CHECK(c.host.files.at("/runs/fake/report.html").find("00e+") == std::string::npos);
}

TEST_CASE(
    "training that is shorter than the sampling interval has its rate measured over the training "
    "time alone") {
  FakeCluster c;
  // Attempts run one at a time, and each takes one tick of 25 ms. The training rate is therefore 8
  // examples in 25 ms. Evaluation also takes time, which must not count.
  MonoTime free_at{0};
  c.hold = [](const FakeWorker&, const v1::Grant& g) {
    return Trains(g) || g.kind() == v1::EVALUATE;
  };
  FakeWorker& worker = c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] {
    if (!worker.held.empty() && c.host.clock.Now() >= free_at) {
      const v1::Grant grant = worker.held.front();
      c.Finish(worker, grant);
      free_at = c.host.clock.Now() + std::chrono::milliseconds(25);
    }
    return c.job->ended();
  }));
  CHECK(c.job->state() == JobState::kSucceeded);
  std::istringstream lines(c.host.files.at("/runs/fake/metrics.jsonl"));
  std::vector<double> rates;
  for (std::string line; std::getline(lines, line);) {
    const Parsed json = Parsed::parse(line);
    if (json["kind"] == "rate") rates.push_back(json["examples_per_second"]);
  }
  REQUIRE(rates.size() == 2);  // one rate at the end of each epoch
  for (const double rate : rates) CHECK(rate == Approx(8 / 0.025).epsilon(0.2));
  CHECK(c.host.files.at("/runs/fake/report.html").find("\"rate_by_time\":[[") != std::string::npos);
}

TEST_CASE(
    "a job whose variables exceed its memory on the servers is refused with the numbers when it is "
    "planned") {
  for (const std::uint64_t max : {511u, 512u}) {
    FakeCluster c(
        [&](config::JobSpec& s, JobOptions&) { s.resources.server_memory_bytes_max = max; });
    c.AddWorker("0");
    c.AddServer("0");
    c.job->Start();
    REQUIRE(c.RunToEnd());
    CHECK((c.job->state() == JobState::kSucceeded) == (max == 512));
    if (max == 511)
      CHECK_THAT(c.Status().first_cause().message(),
                 Catch::Contains("bytes=512 spec.resources.server_memory_bytes_max=511 shards=4"));
  }
}

TEST_CASE(
    "a variable is partitioned until each part fits a request, and a row that does not fit is "
    "refused when planned") {
  FakeCluster c;
  // The budget has space for four rows and for the other bytes of a request.
  c.server_budget_bytes_max = (64u << 10) + 16;
  c.AddServer("7");
  c.AddWorker("0");
  c.job->Start();

  SECTION("the variable is partitioned") {
    c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
    REQUIRE(c.Run([&] { return !c.workers.at("0").held.empty(); }));
    CHECK(c.servers.at("7").shards.size() == 16);
    c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
    c.FinishHeld(c.workers.at("0"));
    REQUIRE(c.RunToEnd());
    CHECK(c.job->state() == JobState::kSucceeded);
  }
  SECTION("a later server accepts less than a part") {
    c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
    REQUIRE(c.Run([&] { return !c.workers.at("0").held.empty(); }));
    c.server_budget_bytes_max = (64u << 10) + 12;
    const TaskId lost = c.servers.at("7").task;
    c.servers.erase("7");
    c.AddServer("8");
    c.job->OnServerLost(lost, "7", "disconnected for longer than server_lost_after", false);
    REQUIRE(c.RunToEnd());
    CHECK(c.job->state() == JobState::kFailed);
    CHECK_THAT(
        c.Status().first_cause().message(),
        Catch::StartsWith("variable counting/samples: its rows 0 to 4 exceed the limit of one "
                          "request to ps_server/8") &&
            Catch::Contains(
                "bytes=16 max=12; raise the limit of that server, now --budget-bytes-max 65548"));
  }
}

TEST_CASE(
    "a job with a row that exceeds the servers' requests fails at once, with variable, server and "
    "flag") {
  FakeCluster c;
  c.server_budget_bytes_max = (64u << 10) + 3;
  c.AddServer("7");
  c.AddWorker("0");
  c.job->Start();
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kFailed);
  CHECK_THAT(c.Status().first_cause().message(),
             Catch::Equals("variable counting/samples: one row exceeds the limit of one request to "
                           "ps_server/7: row_bytes=4 max=3; raise the limit of "
                           "that server, now --budget-bytes-max 65539"));
  CHECK(c.Status().first_cause().kind() == "user");
}

TEST_CASE("a waiting job reports the missing task, and continues when it registers") {
  FakeCluster c;
  c.job->Start();
  CHECK(c.job->WaitingFor() == "workers: none is connected");
  c.AddWorker("0");
  REQUIRE(c.Run([&] { return c.job->WaitingFor() == "servers: none is connected"; }));
  c.AddServer("0");
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
}

TEST_CASE("a dead worker's closures are granted again first, with a higher attempt") {
  FakeCluster c;
  c.hold = [](const FakeWorker& w, const v1::Grant& g) { return w.identity == "0" && Trains(g); };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.workers["0"].held.size() >= 2; }));
  const std::vector<v1::Grant> lost = c.workers["0"].held;
  c.KillWorker("0");
  CHECK(c.job->WaitingFor() == "workers: none is connected");
  c.AddWorker("1");
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  for (const v1::Grant& old : lost) {
    int later = 0;
    for (const v1::Grant& g : c.granted)
      later += Trains(g) && g.closure() == old.closure() && g.attempt().n() > old.attempt().n();
    CHECK(later == 1);
  }
  const Parsed result = Parsed::parse(c.host.files.at("/runs/fake/result.json"));
  CHECK(result["closures"]["attempts"] == 16 + lost.size());
  REQUIRE(result["deaths"].size() == 1);
  CHECK(result["deaths"][0]["task"] == "worker/0");
}

TEST_CASE(
    "a dead worker's closures go to a worker at its limit too, two at a time, to be run first") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
  c.AddWorker("0");
  c.AddWorker("1");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(
      c.Run([&] { return c.workers["0"].held.size() == 2 && c.workers["1"].held.size() == 2; }));
  const std::vector<v1::Grant> lost = c.workers["0"].held;
  c.KillWorker("0");
  REQUIRE(c.Run([&] { return c.workers["1"].held.size() == 4; }));
  const std::vector<v1::Grant>& held = c.workers["1"].held;
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK_FALSE(held[i].first());
    CHECK(held[i + 2].first());
    CHECK(held[i + 2].closure() == lost[i].closure());
  }
}

TEST_CASE("a returning worker keeps its closures, and its Done counts") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.workers["0"].held.size() >= 2; }));
  const v1::Grant grant = c.workers["0"].held[0];
  v1::Hello hello;
  hello.set_process_uid(5);
  FakeCluster::AddHeld(grant, c.workers["0"].map.version(), &hello);
  FakeWorker& back = c.AddWorker("0", hello, false);
  REQUIRE(c.last_adopted.size() == 1);
  CHECK(c.last_adopted[0].closure() == grant.closure());
  c.Finish(back, grant);
  c.Deliver();
  CHECK(back.answered.count(grant.attempt().n()) == 1);
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.FinishHeld(back);
  REQUIRE(c.RunToEnd());
  const Parsed result = Parsed::parse(c.host.files.at("/runs/fake/result.json"));
  CHECK(result["deaths"].empty());
  CHECK(result["closures"]["succeeded"] == 16);
}

TEST_CASE("no closure of the next epoch is granted before the evaluation of this one has ended") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::EVALUATE || g.closure() == 7;
  };
  c.AddWorker("0");
  c.AddWorker("1");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() == 7; }));
  for (int i = 0; i < 20; ++i) {
    c.host.clock.Advance(std::chrono::milliseconds(25));
    c.job->Tick();
    c.Deliver();
  }
  // While closure 7 runs, neither the evaluation nor closure 8 may be granted.
  for (const v1::Grant& g : c.granted) {
    CHECK(g.kind() != v1::EVALUATE);
    if (Trains(g)) CHECK(g.closure() <= 7);
  }
  for (auto& [identity, worker] : c.workers) {
    c.FinishHeld(worker);
  }
  c.Deliver();
  CHECK(c.Status().phase() == "evaluating");
  for (const v1::Grant& g : c.granted) {
    if (Trains(g)) CHECK(g.closure() <= 7);
  }
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  for (auto& [identity, worker] : c.workers) {
    c.FinishHeld(worker);
  }
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
}

TEST_CASE("the death of a worker during an evaluation does not change the sum") {
  FakeCluster c;
  c.hold = [](const FakeWorker& w, const v1::Grant& g) {
    return g.kind() == v1::EVALUATE && w.identity == "0";
  };
  c.AddWorker("0");
  c.AddWorker("1");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
  FakeWorker zombie = c.workers["0"];
  const v1::Grant first = zombie.held[0];
  c.KillWorker("0");
  c.workers["0"] = zombie;
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  // The stopped worker reports its attempt after the closure was granted again. Only one of the two
  // attempts may count.
  c.Finish(c.workers["0"], first);
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().epoch_rows(0).counting_sum() == 56);
  CHECK(c.Status().epoch_rows(1).counting_sum() == 56);
}

TEST_CASE(
    "a server that registers without its shards gets them from the seed, and all closures run "
    "again there") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g) && g.closure() == 12; };
  c.AddWorker("0");
  c.AddServer("0");
  c.AddServer("1");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() >= 12; }));
  const std::size_t before = c.granted.size();
  const std::size_t shards_before = c.servers["1"].shards.size();
  REQUIRE(shards_before == 2);
  c.AddServer("1");
  CHECK(c.Run([&] { return c.servers["1"].shards.size() == 2; }));
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.FinishHeld(c.workers["0"]);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  std::set<std::uint64_t> repaired;
  for (std::size_t i = before; i < c.granted.size(); ++i) {
    if (Trains(c.granted[i]) && !c.granted[i].all_targets()) {
      CHECK(c.granted[i].targets_size() == 2);
      repaired.insert(c.granted[i].closure());
    }
  }
  CHECK(repaired.size() >= 12);
  CHECK(c.Status().closures_rerun() >= 12);
  CHECK(c.Status().closures_succeeded() == 16);  // users see each closure once
  CHECK(c.Status().updates_redone() >= 24);
}

TEST_CASE(
    "a user's error during a re-run ends the job, or the loss is counted if the job permits it") {
  const bool report = GENERATE(false, true);
  CAPTURE(report);
  FakeCluster c([&](config::JobSpec& spec, JobOptions&) {
    spec.training.on_lost_updates = report ? "report" : "fail";
  });
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::EVALUATE; };
  c.AddWorker("0");
  c.AddServer("0");
  c.AddServer("1");
  c.job->Start();
  REQUIRE(
      c.Run([&] { return c.Status().phase() == "evaluating" && !c.workers["0"].held.empty(); }));
  const std::uint64_t trained = c.Status().closures_succeeded();
  REQUIRE(trained > 0);
  c.hold = [&](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::EVALUATE || (Trains(g) && !g.all_targets());
  };
  c.AddServer("1");  // this is another process, so the two shards are lost
  const auto repair = [&] {
    const auto& held = c.workers["0"].held;
    return std::find_if(held.begin(), held.end(),
                        [](const v1::Grant& g) { return Trains(g) && !g.all_targets(); });
  };
  std::uint64_t lost = 0;
  for (; lost < trained; ++lost) {
    REQUIRE(c.Run([&] { return repair() != c.workers["0"].held.end(); }));
    const v1::Grant grant = *repair();
    CHECK(grant.targets_size() == 2);
    c.FailGrant(c.workers["0"], grant, "data are not those of the plan: file=images", true);
    if (!report) break;
  }
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.FinishHeld(c.workers["0"]);
  REQUIRE(c.RunToEnd());
  const v1::JobStatus status = c.Status();
  const Parsed result = Parsed::parse(c.host.files.at("/runs/fake/result.json"));
  if (!report) {
    CHECK(c.job->state() == JobState::kFailed);
    CHECK(status.first_cause().message() == "data are not those of the plan: file=images");
    CHECK(result["lost"] == Parsed{{"closures", 0}, {"updates", 0}});
    return;
  }
  CHECK(c.job->state() == JobState::kSucceeded);
  CHECK(status.closures_lost() == trained);
  CHECK(status.updates_lost() == trained * 2 * 2);  // two steps per closure, in two shards
  CHECK(result["lost"] == Parsed{{"closures", trained}, {"updates", trained * 2 * 2}});
  CHECK(result["closures"]["succeeded"] == 16);
  CHECK(result["closures"]["failed"] == 0);
  std::vector<std::string> said;
  for (const v1::Event& event : status.events()) {
    if (event.kind() == "lost") said.push_back(event.text());
  }
  REQUIRE(said.size() == std::min<std::uint64_t>(trained, 8));
  CHECK_THAT(
      said[0],
      Catch::Contains(
          "updates of closure 0 are lost in 2 shards, because the closure cannot be run again: ") &&
          Catch::Contains("file=images"));
  CHECK((trained < 8) ==
        (said.back().find("further losses are only counted") == std::string::npos));
}

TEST_CASE("a server that disconnected and returned keeps its shards") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g) && g.closure() == 12; };
  c.AddWorker("0");
  c.AddServer("0");
  c.AddServer("1");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() >= 12; }));
  c.job->OnServerAway(c.servers["1"].task, "its session closed");
  CHECK(c.job->WaitingFor().find("ps_server/1 has been disconnected") != std::string::npos);
  c.AddServer("1", true);
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.FinishHeld(c.workers["0"]);
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().closures_rerun() == 0);
  CHECK(Parsed::parse(c.host.files.at("/runs/fake/result.json"))["deaths"].empty());
}

TEST_CASE("the shards of a lost server go to a living server, or wait for one") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g) && g.closure() == 5; };
  c.AddWorker("0");
  c.AddServer("0");
  const bool two = GENERATE(true, false);
  if (two) c.AddServer("1");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() >= 5; }));
  const TaskId lost = c.servers["0"].task;
  c.servers.erase("0");
  c.job->OnServerLost(lost, "0", "disconnected for longer than server_lost_after", false);
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.FinishHeld(c.workers["0"]);
  if (!two) {
    CHECK_FALSE(c.Run([&] { return c.job->ended(); }, std::chrono::seconds(2)));
    CHECK(c.job->WaitingFor().find("servers: none can take 4 shards") != std::string::npos);
    c.AddServer("7");
  }
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  CHECK(c.Status().closures_rerun() >= 5);
}

TEST_CASE("an evaluation begins again if a shard was rolled back in the meantime") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::EVALUATE; };
  c.AddWorker("0");
  c.AddServer("0");
  c.AddServer("1");
  c.job->Start();
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
  const std::vector<v1::Grant> first_round = c.workers["0"].held;
  c.AddServer("0");  // this is another process, so the shards are lost
  REQUIRE(c.Run([&] {
    return c.Status().phase() == "evaluating" && !c.workers["0"].held.empty() &&
           c.workers["0"].held.back().closure() > first_round.back().closure();
  }));
  CHECK(c.workers["0"].superseded.count(first_round[1].attempt().n()) == 1);
  // The Done of the first round must be answered with superseded, and must not count.
  c.eval_count = 1000;
  c.Finish(c.workers["0"], first_round[0]);
  c.Deliver();
  CHECK(c.workers["0"].superseded.count(first_round[0].attempt().n()) == 1);
  c.eval_count = 7;
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.FinishHeld(c.workers["0"]);
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().epoch_rows(0).counting_sum() == 56);
}

TEST_CASE("a rollback during the export of weights repeats repair, evaluation and export") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::EXPORT; };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.Status().phase() == "exporting" && !c.workers["0"].held.empty(); }));
  const v1::Grant old = c.workers["0"].held[0];
  c.AddServer("0");
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  c.Finish(c.workers["0"], old);
  REQUIRE(c.Run([&] { return c.Status().phase() == "repairing" && !c.workers["0"].held.empty(); }));
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.FinishHeld(c.workers["0"]);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  CHECK(c.workers["0"].superseded.count(old.attempt().n()) == 1);
  int exports = 0, evaluations = 0;
  for (const v1::Grant& g : c.granted) {
    exports += g.kind() == v1::EXPORT;
    evaluations += g.kind() == v1::EVALUATE;
  }
  CHECK(exports == 2);
  CHECK(evaluations == 24);  // the evaluation after epoch 2 runs twice
}

TEST_CASE("a user's error seals the shards and fails the job with its cause") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g) && g.closure() == 3; };
  c.AddWorker("0");
  c.AddServer("0");
  c.AddServer("1");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() >= 7; }));
  const v1::Grant grant = c.workers["0"].held[0];
  c.FailGrant(c.workers["0"], grant, "bad record: file=x line=3", true);
  CHECK(c.Status().phase() == "sealing");
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kFailed);
  CHECK(c.Status().first_cause().message() == "bad record: file=x line=3");
  CHECK(c.Status().first_cause().origin_text() == "worker/0");
  const Parsed result = Parsed::parse(c.host.files.at("/runs/fake/result.json"));
  CHECK(result["state"] == "FAILED");
  CHECK(result["first_cause"]["message"] == "bad record: file=x line=3");
  CHECK(result["closures"]["succeeded"] == 7);
  CHECK(result["closures"]["failed"] == 1);
  CHECK(result["shards"].size() == 4);
  CHECK(c.workers["0"].ended_state == "FAILED");
}

TEST_CASE(
    "a machine's error is retried with back-off up to a limit that fails the job, and a silent "
    "owner is unmapped") {
  FakeCluster c([](config::JobSpec&, JobOptions& o) { o.retries_max = 2; });
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g) && g.closure() == 3; };
  c.AddWorker("0");
  FakeServer& server = c.AddServer("0");
  c.job->Start();
  for (int i = 0; i < 3; ++i) {
    REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
    const v1::Grant grant = c.workers["0"].held[0];
    if (i == 2) server.silent = true;
    c.FailGrant(c.workers["0"], grant, "server unreachable", false);
    if (i < 2) {
      c.Deliver();
      CHECK(c.workers["0"].held.empty());  // no closure is granted again yet
    }
  }
  CHECK(c.Status().phase() == "sealing");
  CHECK(c.Status().waiting_for().find("seal") != std::string::npos);
  REQUIRE(c.RunToEnd());  // the silent owner is unmapped after 5 s
  CHECK(c.job->state() == JobState::kFailed);
  CHECK(c.Status().first_cause().message() == "server unreachable");
  bool said = false;
  const v1::JobStatus status = c.Status();
  for (const v1::Event& e : status.events())
    said |= e.text().find("are taken from their servers") != std::string::npos;
  CHECK(said);
}

TEST_CASE("a user's error takes precedence over a machine's error that ended the job just before") {
  FakeCluster c([](config::JobSpec&, JobOptions& o) { o.retries_max = 0; });
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
  c.AddWorker("0");
  c.AddWorker("1");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty() && !c.workers["1"].held.empty(); }));
  const v1::Grant machine = c.workers["0"].held[0], user = c.workers["1"].held[0];
  c.FailGrant(c.workers["0"], machine, "connection reset", false);
  c.FailGrant(c.workers["1"], user, "shape mismatch: layer=logits", true);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kFailed);
  CHECK(c.Status().first_cause().message() == "shape mismatch: layer=logits");
}

TEST_CASE("a cancelled job seals, drops and ends CANCELLED, and a repeat changes nothing") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g) && g.closure() >= 4; };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() == 4; }));
  c.job->Cancel();
  c.job->Cancel();
  const std::size_t grants = c.granted.size();
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kCancelled);
  CHECK(c.granted.size() == grants);
  CHECK(c.workers["0"].ended_state == "CANCELLED");
  CHECK(c.servers["0"].ended);
  const Parsed result = Parsed::parse(c.host.files.at("/runs/fake/result.json"));
  CHECK(result["closures"]["succeeded"] == 4);
  CHECK(result["closures"]["cancelled"].get<int>() ==
        static_cast<int>(result["closures"]["attempts"].get<int>() - 4));
  c.job->Cancel();
  CHECK(c.job->state() == JobState::kCancelled);
}

TEST_CASE("a queued job is cancelled at once") {
  FakeCluster c;
  c.job->Cancel();
  c.Deliver();
  CHECK(c.job->state() == JobState::kCancelled);
  CHECK(c.host.files.count("/runs/fake/result.json") == 1);
}

TEST_CASE("a job that cannot be described fails with the user's error") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::DESCRIBE; };
  c.AddWorker("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
  c.FailGrant(c.workers["0"], v1::Grant(c.workers["0"].held[0]), "no such file: path=/x", true);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kFailed);
  CHECK(c.Status().first_cause().message() == "no such file: path=/x");
}

TEST_CASE(
    "a closure that kills its workers three times at one step is poison, and an advance clears the "
    "count") {
  FakeCluster c;
  const std::uint64_t killer = 3;
  c.hold = [&](const FakeWorker&, const v1::Grant& g) {
    return Trains(g) && g.closure() == killer;
  };
  c.AddServer("0");
  c.job->Start();
  const bool advances = GENERATE(false, true);
  for (int i = 0; i < 3; ++i) {
    FakeWorker& w = c.AddWorker(std::to_string(i));
    REQUIRE(c.Run([&] { return !w.held.empty(); }));
    c.Report(w, w.held[0], advances ? static_cast<std::uint32_t>(i) : 1);
    c.KillWorker(std::to_string(i));
    // The deaths of the workers must not be simultaneous.
    c.Run([] { return false; }, std::chrono::milliseconds(500));
  }
  if (advances) {
    CHECK_FALSE(c.job->ended());
    c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
    c.AddWorker("9");
    REQUIRE(c.RunToEnd());
    CHECK(c.job->state() == JobState::kSucceeded);
    return;
  }
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kFailed);
  const std::string message = c.Status().first_cause().message();
  CHECK(message.find("closure=3") != std::string::npos);
  CHECK(message.find("examples=[24,32)") != std::string::npos);
}

TEST_CASE("an idle worker gets closures that another worker has not begun") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.workers["0"].held.size() >= 2; }));
  // Runs one closure after another up to the end of the epoch. Then worker 0 holds the last two
  // closures of the epoch, and worker 1 registers and gets no work.
  while (true) {
    std::uint64_t newest = 0;
    for (const v1::Grant& g : c.granted) newest = std::max(newest, Trains(g) ? g.closure() : 0);
    if (newest == 7) break;
    c.Finish(c.workers["0"], v1::Grant(c.workers["0"].held[0]));
    c.Deliver();
  }
  REQUIRE(c.workers["0"].held.size() >= 2);
  c.AddWorker("1");
  REQUIRE(c.Run([&] { return !c.workers["1"].held.empty(); }));
  CHECK(c.workers["1"].held[0].closure() == 7);
}

TEST_CASE("a deterministic job gives all of its work to one worker") {
  FakeCluster c([](config::JobSpec& s, JobOptions&) { s.strategy.deterministic = true; });
  c.AddWorker("0");
  c.AddWorker("1");
  c.AddServer("0");
  std::set<std::string> used;
  c.hold = [&](const FakeWorker& w, const v1::Grant&) {
    used.insert(w.identity);
    return false;
  };
  c.job->Start();
  REQUIRE(c.RunToEnd());
  CHECK(used.size() == 1);
}

TEST_CASE("a job wants a worker for each closure that it can run at the same time") {
  FakeCluster c;  // 2 epochs of 8 closures, and after each epoch an evaluation of 8 closures
  CHECK(c.job->wanted_workers() == 0);  // the job is queued
  c.AddServer("0");
  c.job->Start();
  CHECK(c.job->wanted_workers() == 1);  // a worker describes the job
  v1::WorkKind held = v1::TRAIN;
  c.hold = [&](const FakeWorker&, const v1::Grant& g) { return g.kind() == held; };
  c.AddWorker("0");
  FakeWorker& worker = c.workers["0"];
  const auto finish = [&] {
    REQUIRE(c.Run([&] { return !worker.held.empty(); }));
    const v1::Grant grant = worker.held.front();
    c.Finish(worker, grant);
  };
  // 16 closures are left, but only 8 of them can be granted before the evaluation. After the
  // evaluation the job wants as many workers as closures are left.
  for (int ended = 0; ended < 8; ++ended) {
    finish();
    CHECK(c.job->wanted_workers() == 8);
  }
  for (int ended = 9; ended < 16; ++ended) {
    finish();
    CHECK(c.job->wanted_workers() == 16u - ended);
  }
  held = v1::EVALUATE;
  finish();  // finishes the last training closure
  REQUIRE(c.Run([&] { return !worker.held.empty(); }));
  CHECK(c.job->wanted_workers() == 8);
  held = v1::EXPORT;
  for (const v1::Grant& grant : std::vector<v1::Grant>(worker.held)) c.Finish(worker, grant);
  REQUIRE(c.Run([&] { return !worker.held.empty(); }));
  CHECK(c.job->wanted_workers() == 1);
  finish();
  REQUIRE(c.RunToEnd());
  CHECK(c.job->wanted_workers() == 0);
}

TEST_CASE("a deterministic job wants one worker, and a job that is cancelled wants none") {
  FakeCluster c([](config::JobSpec& s, JobOptions&) { s.strategy.deterministic = true; });
  c.AddServer("0");
  c.AddWorker("0");
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  c.job->Start();
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
  CHECK(c.job->wanted_workers() == 1);
  c.job->Cancel();
  CHECK(c.job->wanted_workers() == 0);
}

TEST_CASE("malformed metrics are refused and change nothing") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
  v1::TaskMessage message;
  *message.mutable_done() = c.DoneOf(c.workers["0"], c.workers["0"].held[0]);
  for (int i = 0; i < 5000; ++i) message.mutable_done()->mutable_metrics()->add_step_records();
  CHECK(c.Try(c.workers["0"].task, message).code() == absl::StatusCode::kInvalidArgument);
  CHECK(c.Status().closures_succeeded() == 0);
}

TEST_CASE("a failed assign is retried, and a user's error in it fails the job") {
  FakeCluster c;
  c.hold_assign = [](const v1::Assign&) { return true; };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.servers["0"].shards.size() == 4; }));
  const bool user = GENERATE(true, false);
  c.hold_assign = [](const v1::Assign&) { return false; };
  for (auto [p, shard] : c.servers["0"].shards) {
    v1::TaskMessage message;
    v1::Assigned* a = message.mutable_assigned();
    a->set_job_uid(c.job->uid().value());
    a->set_shard(p);
    *a->mutable_epoch() = shard.assign.epoch();
    a->set_ok(p != 2);
    if (p == 2) {
      a->mutable_error()->set_kind(user ? "user" : "limit");
      a->mutable_error()->set_retryable(!user);
      a->mutable_error()->set_message("no room");
    }
    c.Say(c.servers["0"].task, message);
  }
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == (user ? JobState::kFailed : JobState::kSucceeded));
}

TEST_CASE("after a later life was reported all tasks register anew, and nothing is lost") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g) && g.closure() == 5; };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() >= 5; }));
  const v1::Grant held_grant = c.workers["0"].held[0];
  c.host.term_now = Term(9);
  c.job->BeginAnew(Term(9));
  c.AddServer("0", true);
  v1::Hello hello;
  hello.set_process_uid(1);
  FakeCluster::AddHeld(held_grant, c.workers["0"].map.version(), &hello);
  const v1::ShardMap old_map = c.workers["0"].map;
  FakeWorker& back = c.AddWorker("0", hello, false);
  REQUIRE(c.last_adopted.size() == 1);
  // In the start-up window no closure is granted, and a Done gets no answer yet.
  FakeWorker old = back;
  old.map = old_map;
  v1::TaskMessage done;
  *done.mutable_done() = c.DoneOf(old, held_grant);
  c.Say(back.task, done);
  c.Deliver();
  CHECK(back.answered.empty());
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.job->CloseWindow();
  c.Deliver();
  CHECK(back.answered.count(held_grant.attempt().n()) == 1);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  CHECK(c.Status().closures_rerun() == 0);
  CHECK(c.Status().closures_succeeded() == 16);
}

TEST_CASE("the failpoints of the coordinator have their documented effects") {
  FakeCluster c;
  REQUIRE(c.host.points
              .Arm("coordinator.before_grant=3*delay(400);coordinator.evaluate=1*delay(300);"
                   "coordinator.before_done_answer=2*drop,4*delay(200)",
                   1)
              .ok());
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  CHECK(c.host.clock.Now() >= std::chrono::milliseconds(700));  // both delays have passed
  // All answers except the lost one have arrived, which are those to 1 describe, 16 training, 16
  // evaluation and 1 export closure, minus 1.
  CHECK(c.workers["0"].answered.size() == 33);
}

TEST_CASE("a worker that backs off gets no work until its time ends, and the job reports it") {
  FakeCluster c;
  v1::Registered registered;
  c.job->AdmitWorker(TaskId(50), "0", std::chrono::seconds(1), std::nullopt, false, {},
                     &registered);
  c.job->Ready(TaskId(50));
  c.job->Start();
  c.job->Tick();
  CHECK(c.job->WaitingFor() ==
        "workers: the connected workers back off after repeated deaths: worker/0 for 1.0 s");
  const auto grants = [&] {
    int n = 0;
    for (const v1::CoordinatorMessage& m : c.host.sent[TaskId(50)]) n += m.has_grant();
    return n;
  };
  CHECK(grants() == 0);
  c.host.clock.Advance(std::chrono::milliseconds(1001));
  c.job->Tick();
  CHECK(grants() == 1);
}

TEST_CASE("counters that a task reports for another job do not count for this job") {
  FakeCluster c;
  FakeWorker& worker = c.AddWorker("0");
  FakeServer& server = c.AddServer("0");
  const std::uint64_t other = c.job->uid().value() + 1;
  v1::TaskMessage beat;
  v1::WorkerProgress* said = beat.mutable_heartbeat()->mutable_worker();
  said->set_job_uid(other);
  said->set_job_stint(1);
  said->set_job_bytes(7777);
  said->set_steps(99);
  c.Say(worker.task, beat);
  said->set_job_uid(c.job->uid().value());
  said->set_job_stint(2);
  said->set_job_bytes(200);
  said->set_steps(1);
  c.Say(worker.task, beat);
  beat.Clear();
  v1::JobUsage* use = beat.mutable_heartbeat()->mutable_server()->add_jobs();
  use->set_job_uid(other);
  use->set_stint(1);
  use->set_bytes_received(8888);
  use->set_duplicates_refused(55);
  c.Say(server.task, beat);
  server.bytes = 300;
  c.job->Start();
  REQUIRE(c.RunToEnd());
  const Parsed result = Parsed::parse(c.host.files.at("/runs/fake/result.json"));
  CHECK(result["tasks"][0]["bytes"] == 200);
  CHECK(result["tasks"][1]["bytes"] == 300);
  CHECK(result["duplicates_refused"] == 4);  // one duplicate for each shard of the server
}

TEST_CASE(
    "an evaluation closure of another worker, or of none, is not accepted as done, failed or "
    "dropped") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::EVALUATE; };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] {
    return !c.workers["0"].held.empty() && c.workers["0"].held[0].kind() == v1::EVALUATE;
  }));
  const v1::Grant granted = c.workers["0"].held[0];
  // Closure 7 of this round still waits for a free worker, so its attempt is (0,0). A message
  // without an attempt also has the attempt (0,0).
  v1::Grant never = granted;
  never.set_closure((granted.closure() & ~0xffffffffull) + 7);
  never.clear_attempt();
  c.eval_count = 1000;
  c.Finish(c.workers["0"], never);
  c.FailGrant(c.workers["0"], never, "no such thing", true);
  // Worker 1 must not be able to end a closure that worker 0 holds.
  FakeWorker& other = c.AddWorker("1");
  c.Finish(other, granted);
  c.FailGrant(other, granted, "not mine", true);
  c.eval_count = 7;
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  const std::vector<v1::Grant> held = c.workers["0"].held;
  for (const v1::Grant& g : held) c.Finish(c.workers["0"], g);
  const std::vector<v1::Grant> others = c.workers["1"].held;
  for (const v1::Grant& g : others) c.Finish(c.workers["1"], g);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  CHECK(c.Status().epoch_rows(0).counting_sum() == 8 * 7);
}

TEST_CASE("a job whose server never answers its Assign reports the server for which it waits") {
  FakeCluster c;
  c.hold_assign = [](const v1::Assign& a) { return a.spec().shard() == 2; };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(
      c.Run([&] { return c.Status().phase() == "placing" && c.servers["0"].shards.size() == 4; }));
  CHECK(c.Status().waiting_for() == "servers: ps_server/0 has not yet loaded 1 shard");
  c.job->Cancel();
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kCancelled);
}

TEST_CASE("the text of a task's error is bounded before it is kept or shown") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
  std::string text;
  // Each of these characters takes two bytes. When the text is truncated, no character may be
  // divided.
  while (text.size() < (1u << 20)) text += "\u00fc";
  c.FailGrant(c.workers["0"], c.workers["0"].held[0], "x" + text, true);
  REQUIRE(c.RunToEnd());
  const v1::JobStatus status = c.Status();
  CHECK(status.first_cause().message().size() <= 3500);
  for (const v1::Event& event : status.events()) CHECK(event.text().size() <= 2000);
  v1::JobStatus read;
  CHECK(read.ParseFromString(status.SerializeAsString()));
}

// ---------------------------------------------------------------- work without progress

namespace {

// Sends a heartbeat in which the worker reports that it runs this closure, at this step.
void Beat(FakeCluster& c, FakeWorker& worker, const v1::Grant& grant, std::uint32_t step,
          bool computing, const std::string& waits_for_room = "") {
  v1::TaskMessage message;
  v1::WorkerProgress* p = message.mutable_heartbeat()->mutable_worker();
  p->set_job_uid(grant.job_uid());
  p->set_state(waits_for_room.empty() ? "running" : "paused");
  p->set_waiting_for(waits_for_room);
  p->set_running_closure(grant.closure());
  *p->mutable_running_attempt() = grant.attempt();
  p->set_running_step(step);
  p->set_computing(computing);
  c.Say(worker.task, message);
}

int EventsWith(const FakeCluster& c, const std::string& text) {
  const v1::JobStatus status = c.Status();
  return static_cast<int>(
      std::count_if(status.events().begin(), status.events().end(),
                    [&](const v1::Event& e) { return e.text().find(text) != std::string::npos; }));
}

}  // namespace

TEST_CASE(
    "an attempt without progress in a living session is granted elsewhere, and its worker gets no "
    "work until it computes") {
  FakeCluster c([](config::JobSpec& s, JobOptions& o) {
    s.training.epochs = 1;
    o.step_timeout = std::chrono::seconds(8);
    o.aside_max = std::chrono::seconds(1);
  });
  c.hold = [](const FakeWorker& w, const v1::Grant& g) { return Trains(g) && w.identity == "0"; };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  FakeWorker& hung = c.workers["0"];
  REQUIRE(c.Run([&] { return !hung.held.empty(); }));
  const v1::Grant stuck = hung.held[0];
  c.AddWorker("1");
  const MonoTime began = c.host.clock.Now();
  const auto beat = [&] {
    if (c.workers.count("0") != 0) Beat(c, hung, stuck, 1, true);
    return c.job->ended();
  };
  // A step that takes less than the timeout is only slow, so the attempt must not be revoked.
  REQUIRE_FALSE(c.Run(
      [&] {
        Beat(c, hung, stuck, 0, true);
        return false;
      },
      std::chrono::seconds(6)));
  CHECK(EventsWith(c, "has not advanced a step") == 0);
  REQUIRE(c.Run(beat, std::chrono::seconds(120)));
  CHECK(c.host.clock.Now() - began > std::chrono::seconds(14));
  CHECK(c.job->state() == JobState::kSucceeded);
  CHECK(EventsWith(c, "worker/0 has not advanced a step for 8 s: closure " +
                          std::to_string(stuck.closure()) + " step 1 is revoked") == 1);
  // Worker 0 must have been told that its attempt is superseded. The other worker must have the
  // next attempt, which has a higher number.
  CHECK(hung.superseded.count(stuck.attempt().n()) == 1);
  Attempt last{};
  for (const v1::Grant& g : c.granted) {
    if (Trains(g) && g.closure() == stuck.closure()) last = client::FromProto<Attempt>(g.attempt());
  }
  CHECK(last > client::FromProto<Attempt>(stuck.attempt()));
  CHECK(c.Status().closures_succeeded() == 8);
}

TEST_CASE(
    "workers that wait for capacity are reported with place and reason, keep their work, and their "
    "end of waiting is an event") {
  FakeCluster c([](config::JobSpec& s, JobOptions& o) {
    s.training.on_over_budget = "pause";
    o.step_timeout = std::chrono::seconds(8);
  });
  bool held = true;
  c.hold = [&](const FakeWorker&, const v1::Grant& g) { return Trains(g) && held; };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  FakeWorker& worker = c.workers["0"];
  REQUIRE(c.Run([&] { return !worker.held.empty(); }));
  const v1::Grant grant = worker.held[0];
  const std::string room =
      "memory at ps_server/0: server's tables are above memory_bytes_max: table=movies held=1000 "
      "memory_bytes_max=900";
  const auto beat = [&](const std::string& waits, std::chrono::seconds time) {
    c.Run(
        [&] {
          Beat(c, worker, grant, 1, false, waits);
          return false;
        },
        time);
  };
  beat(room, std::chrono::seconds(30));
  CHECK(c.Status().waiting_for() == room + " (worker/0)");
  CHECK(c.Status().workers(0).state() == "paused");
  CHECK(c.Status().examples_per_second() == 0);
  CHECK(EventsWith(c, "has not advanced a step") == 0);
  CHECK(EventsWith(c, "paused (on_over_budget: pause): worker/0 waits for " + room) == 1);
  CHECK(EventsWith(c, "goes on") == 0);
  beat("", std::chrono::seconds(3));
  CHECK(c.Status().waiting_for().empty());
  CHECK(EventsWith(c, "resumed: no push waits for memory any more") == 1);
  held = false;
  c.FinishHeld(worker);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
}

void BothTrain(FakeCluster& c) {
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
  c.AddWorker("0");
  c.AddWorker("1");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty() && !c.workers["1"].held.empty(); }));
}

TEST_CASE("the death of a worker that waits for capacity is not reported as the end of its wait") {
  FakeCluster c([](config::JobSpec& s, JobOptions&) { s.training.on_over_budget = "pause"; });
  BothTrain(c);
  const auto beat = [&](const std::string& identity, const std::string& waits) {
    Beat(c, c.workers[identity], c.workers[identity].held[0], 1, false, waits);
  };
  beat("0", "memory at ps_server/0");
  beat("1", "");
  CHECK(EventsWith(c, "paused (on_over_budget: pause): worker/0 waits for memory at ps_server/0") ==
        1);
  SECTION("the session closes") { c.KillWorker("0"); }
  SECTION("another process has the identity") { c.AddWorker("0"); }
  beat("1", "");
  CHECK(EventsWith(c, "resumed: ") == 0);
  CHECK(
      EventsWith(
          c, "no push waits for memory any more: worker/0, whose push waited, has left this job") ==
      1);
}

TEST_CASE("a restarted coordinator does not report the end of a wait for capacity") {
  FakeCluster c([](config::JobSpec& s, JobOptions&) { s.training.on_over_budget = "pause"; });
  BothTrain(c);
  const v1::Grant grant = c.workers["1"].held[0];
  Beat(c, c.workers["0"], c.workers["0"].held[0], 1, false, "memory at ps_server/0");
  c.job->BeginAnew(Term(9));
  Beat(c, c.AddWorker("1", {}, false), grant, 1, false);
  CHECK(EventsWith(c, "paused (on_over_budget: pause)") == 1);
  CHECK(EventsWith(c, "resumed: ") == 0);
}

TEST_CASE(
    "a worker that lost its work gets work again once it reports no computation and is no longer "
    "set aside") {
  FakeCluster c([](config::JobSpec&, JobOptions& o) {
    o.step_timeout = std::chrono::seconds(8);
    o.aside_max = std::chrono::seconds(2);
  });
  bool hangs = true;
  c.hold = [&](const FakeWorker&, const v1::Grant& g) { return Trains(g) && hangs; };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  FakeWorker& worker = c.workers["0"];
  REQUIRE(c.Run([&] { return !worker.held.empty(); }));
  const v1::Grant stuck = worker.held[0];
  bool computing = true;
  const auto until = [&](const std::string& text) {
    return c.Run(
        [&] {
          Beat(c, worker, stuck, 1, computing);
          return EventsWith(c, text) > 0;
        },
        std::chrono::seconds(30));
  };
  REQUIRE(until("has not advanced a step"));
  c.Run(
      [&] {
        Beat(c, worker, stuck, 1, true);
        return false;
      },
      std::chrono::seconds(5));
  CHECK(worker.held.empty());  // the worker gets no work for 2 s, but still computes
  CHECK(c.Status().waiting_for() == "workers: set aside because they made no progress: worker/0");
  CHECK(c.Status().workers(0).state() == "stalled");
  computing = hangs = false;
  REQUIRE(until("may be given work again"));
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
}

TEST_CASE(
    "a closure that stalls at one step on three workers is poison, and no stall counts while a "
    "server is missing") {
  FakeCluster c([](config::JobSpec&, JobOptions& o) {
    o.step_timeout = std::chrono::seconds(8);
    o.aside_max = std::chrono::seconds(1);
  });
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g) && g.closure() == 3; };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  FakeWorker& worker = c.workers["0"];
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() >= 4 && !worker.held.empty(); }));
  const auto beat = [&] {
    if (!worker.held.empty()) {
      const v1::Grant grant = worker.held[0];
      Beat(c, worker, grant, 1, false);
    }
    return c.job->ended();
  };
  c.job->OnServerAway(c.servers["0"].task, "its session closed");
  CHECK_FALSE(c.Run(beat, std::chrono::seconds(40)));
  CHECK(EventsWith(c, "has not advanced a step") == 0);
  c.AddServer("0", true);
  REQUIRE(c.Run(beat, std::chrono::seconds(200)));
  CHECK(c.job->state() == JobState::kFailed);
  CHECK_THAT(c.Status().first_cause().message(), Catch::Contains("closure=3") &&
                                                     Catch::Contains("step=1") &&
                                                     Catch::Contains("step_timeout"));
  CHECK(EventsWith(c, "has not advanced a step") == 3);
}

TEST_CASE("an evaluation that stalls three times fails the job and names the option") {
  FakeCluster c([](config::JobSpec&, JobOptions& o) {
    o.step_timeout = std::chrono::seconds(8);
    o.aside_max = std::chrono::seconds(1);
  });
  c.hold = [](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::EVALUATE && (g.closure() & 0xffffffffu) == 2;
  };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.job->ended(); }, std::chrono::seconds(200)));
  CHECK(c.job->state() == JobState::kFailed);
  CHECK_THAT(c.Status().first_cause().message(),
             Catch::Contains("EVALUATE closure 2") && Catch::Contains("raise step_timeout"));
}

TEST_CASE(
    "ended closures behind an open one are bounded, and no closure is granted beyond the window, "
    "with an event") {
  FakeCluster c([](config::JobSpec& s, JobOptions& o) {
    s.counting.examples = 800;  // 800 examples are 100 closures
    s.training.epochs = 1;
    o.closures_behind_max = 16;
    o.step_timeout = std::chrono::milliseconds(0);  // 0 means no limit
  });
  bool holds = true;
  c.hold = [&](const FakeWorker&, const v1::Grant& g) {
    return Trains(g) && g.closure() == 5 && holds;
  };
  c.AddWorker("0");
  c.AddWorker("1");
  c.AddServer("0");
  c.job->Start();
  CHECK_FALSE(
      c.Run([&] { return c.Status().closures_succeeded() > 20; }, std::chrono::seconds(20)));
  CHECK(c.Status().closures_succeeded() == 20);  // the 5 closures before closure 5 and 15 after it
  CHECK(c.job->closures_behind() == 15);
  CHECK(EventsWith(c, "closure 5 has not ended, but later closures have") == 1);
  CHECK(c.job->TakeWindowRefusals() >= 1);
  CHECK(c.job->TakeWindowRefusals() == 0);
  holds = false;
  for (auto& [identity, worker] : c.workers) {
    const std::vector<v1::Grant> held = worker.held;
    for (const v1::Grant& g : held) c.Finish(worker, g);
  }
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
}

// ---------------------------------------------------------------- the sender of a message

TEST_CASE(
    "Done, Failed and AttemptDropped of another worker's attempt change nothing, and are counted") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
  c.AddWorker("0");
  FakeWorker& other = c.AddWorker("1");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.workers["0"].held.size() >= 2; }));
  const v1::Grant grant = c.workers["0"].held[0];
  v1::TaskMessage done;
  *done.mutable_done() = c.DoneOf(other, grant);
  c.Say(other.task, done);
  c.Deliver();
  CHECK(other.superseded.count(grant.attempt().n()) == 1);  // LEDGER line 19
  CHECK(c.Status().closures_succeeded() == 0);
  c.FailGrant(other, grant, "not mine", true);
  CHECK(c.Status().phase() == "training");
  v1::TaskMessage dropped;
  dropped.mutable_dropped()->set_job_uid(grant.job_uid());
  dropped.mutable_dropped()->set_closure(grant.closure());
  *dropped.mutable_dropped()->mutable_attempt() = grant.attempt();
  c.Say(other.task, dropped);
  const std::size_t grants = c.granted.size();
  c.Run([] { return false; }, std::chrono::seconds(2));
  CHECK(c.granted.size() == grants);  // the closure was not granted again
  // A worker that claims the attempt in its Hello must not get the attempt.
  v1::Hello hello;
  // The Hello even has the proof of the attempt's Grant, which names another worker.
  FakeCluster::AddHeld(grant, c.workers["0"].map.version(), &hello);
  c.AddWorker("2", hello);
  CHECK(c.last_adopted.empty());
  CHECK(c.host.foreign.size() == 4);
  c.Finish(c.workers["0"], grant);
  c.Deliver();
  CHECK(c.workers["0"].answered.count(grant.attempt().n()) == 1);
  CHECK(c.Status().closures_succeeded() == 1);
}

TEST_CASE(
    "Assigned and Sealed of another server's shard change nothing and are counted, and the shard "
    "is dropped") {
  FakeCluster c;
  c.hold_assign = [](const v1::Assign&) { return true; };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.servers["0"].shards.size() == 4; }));
  FakeServer& other = c.AddServer("1");
  c.Deliver();
  v1::TaskMessage message;
  v1::Assigned* assigned = message.mutable_assigned();
  assigned->set_job_uid(c.job->uid().value());
  assigned->set_ok(true);
  for (const auto& [p, shard] : c.servers["0"].shards) {
    assigned->set_shard(p);
    *assigned->mutable_epoch() = shard.assign.epoch();
    c.Say(other.task, message);
  }
  CHECK(c.host.foreign.size() == 4);
  CHECK(c.Status().state() == "STARTING");
  int drops = 0;
  for (const v1::CoordinatorMessage& m : c.host.sent[other.task]) drops += m.has_drop();
  CHECK(drops == 4);  // LEDGER line 25: this server holds shards that the map gives to another
  // A user's error in such a message must not end the job.
  assigned->set_ok(false);
  assigned->mutable_error()->set_kind("user");
  c.Say(other.task, message);
  CHECK(c.Status().state() == "STARTING");
  c.servers["0"].silent = true;
  c.job->Cancel();
  v1::TaskMessage sealed;
  for (const auto& [p, shard] : c.servers["0"].shards) {
    sealed.mutable_sealed()->set_job_uid(c.job->uid().value());
    sealed.mutable_sealed()->set_shard(p);
    *sealed.mutable_sealed()->mutable_epoch() = shard.assign.epoch();
    c.Say(other.task, sealed);
  }
  CHECK(c.Status().phase() == "sealing");
  CHECK(c.host.foreign.size() == 9);
}

// ---------------------------------------------------------------- counters

TEST_CASE(
    "a worker and a server that return after they were declared gone are counted once, also over a "
    "restart") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g) && g.closure() == 5; };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() >= 5; }));
  const auto worker_says = [&](std::uint64_t steps, std::uint64_t bytes) {
    v1::TaskMessage beat;
    beat.mutable_heartbeat()->mutable_worker()->set_job_uid(c.job->uid().value());
    beat.mutable_heartbeat()->mutable_worker()->set_job_stint(1);
    beat.mutable_heartbeat()->mutable_worker()->set_steps(steps);
    beat.mutable_heartbeat()->mutable_worker()->set_job_bytes(bytes);
    c.Say(c.workers["0"].task, beat);
  };
  const auto server_says = [&](std::uint64_t duplicates) {
    v1::TaskMessage beat;
    v1::JobUsage* use = beat.mutable_heartbeat()->mutable_server()->add_jobs();
    use->set_job_uid(c.job->uid().value());
    use->set_stint(1);
    use->set_duplicates_refused(duplicates);
    c.Say(c.servers["0"].task, beat);
  };
  worker_says(10, 1000);
  server_says(3);
  v1::Hello same;
  same.set_process_uid(c.workers["0"].process);
  SECTION("the tasks are gone and return") {
    c.job->OnWorkerGone(c.workers["0"].task, "no message arrived within its lease", false);
    c.AddWorker("0", same, false);
    worker_says(12, 1200);
  }
  SECTION("the job begins anew") {
    c.host.term_now = Term(9);
    c.job->BeginAnew(Term(9));
    c.AddServer("0", true);
    c.AddWorker("0", same, false);
    c.job->CloseWindow();
    worker_says(12, 1200);
    server_says(4);
  }
  CHECK(c.Status().workers(0).steps() == 12);
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  REQUIRE(c.RunToEnd());
  const Parsed result = Parsed::parse(c.host.files.at("/runs/fake/result.json"));
  CHECK(result["tasks"][0]["bytes"] == 1200);
  CHECK(result["duplicates_refused"] == 4);  // the number in the server's last report
}

// ---------------------------------------------------------------- deterministic

TEST_CASE(
    "a deterministic job whose worker cannot work moves only to a worker of the same build and "
    "settings, and reports its wait") {
  FakeCluster c([](config::JobSpec& s, JobOptions&) { s.strategy.deterministic = true; });
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g) && g.closure() >= 3; };
  v1::Hello two, four;
  two.set_compute("cpu threads=2");
  four.set_compute("cpu threads=4");
  c.AddWorker("0", two);
  c.AddWorker("1", four);
  c.AddServer("0");
  c.job->Start();
  REQUIRE(
      c.Run([&] { return !c.workers["0"].held.empty() && c.Status().closures_succeeded() == 3; }));
  c.Report(c.workers["0"], c.workers["0"].held[0], 1);
  c.KillWorker("0");
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.Run([] { return false; }, std::chrono::seconds(3));
  CHECK(c.Status().closures_succeeded() == 3);
  CHECK_THAT(c.Status().waiting_for(),
             Catch::Contains("worker/0") && Catch::Contains("cpu threads=2"));
  CHECK(EventsWith(c, "deterministic: worker/0 cannot work now") == 1);
  // If the results may differ in their bits (promise P9), an event must say so.
  CHECK(EventsWith(c, "deterministic: worker/0 died in closure 3 at step 1") == 1);
  const bool itself = GENERATE(true, false);
  std::set<std::string> used;
  c.hold = [&](const FakeWorker& w, const v1::Grant&) {
    used.insert(w.identity);
    return false;
  };
  c.AddWorker(itself ? "0" : "7", two);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  CHECK(used == std::set<std::string>{itself ? "0" : "7"});
  CHECK(EventsWith(c, "worker/7 takes over from worker/0") == (itself ? 0 : 1));
}

TEST_CASE("a deterministic job whose worker backs off reports it") {
  FakeCluster c([](config::JobSpec& s, JobOptions&) { s.strategy.deterministic = true; });
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g) && g.closure() >= 3; };
  v1::Hello two, four;
  two.set_compute("cpu threads=2");
  two.set_process_uid(71);
  four.set_compute("cpu threads=4");
  c.AddWorker("0", two);
  c.AddWorker("1", four);
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() == 3; }));
  c.KillWorker("0");
  v1::Registered registered;
  two.set_process_uid(72);
  const TaskId task(c.next_task++);
  c.job->AdmitWorker(task, "0", c.host.clock.Now() + std::chrono::seconds(2), std::nullopt, false,
                     two, &registered);
  FakeWorker back;
  back.task = task;
  back.identity = "0";
  back.map = registered.map();
  c.workers["0"] = back;
  c.job->Ready(task);
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.Run([] { return false; }, std::chrono::seconds(1));
  CHECK(c.Status().closures_succeeded() == 3);
  CHECK(EventsWith(c, "deterministic: worker/0 cannot work now") == 1);
  CHECK_THAT(c.Status().waiting_for(), Catch::Contains("worker/0"));
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
}

// ---------------------------------------------------------------- reports to users

TEST_CASE("a job that is cancelled in the queue is QUEUED until it is CANCELLED") {
  FakeCluster c;
  c.job->Cancel();
  CHECK(c.job->state() == JobState::kQueued);
  CHECK(c.Status().state() == "QUEUED");
  CHECK_FALSE(c.job->TakeEnd());
  c.Deliver();
  CHECK(c.Status().state() == "CANCELLED");
  CHECK(c.job->TakeEnd());
  CHECK_FALSE(c.job->TakeEnd());
  CHECK(EventsWith(c, "STARTING") == 0);
}

TEST_CASE(
    "an epoch that is evaluated again has one line in metrics.jsonl, from the accepted "
    "evaluation") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::EXPORT; };
  c.AddWorker("0");
  c.AddServer("0");
  c.AddServer("1");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.Status().phase() == "exporting" && !c.workers["0"].held.empty(); }));
  c.eval_count = 9;
  c.AddServer("1");  // another process, without shards, so epoch 2 is evaluated again
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  std::istringstream lines(c.host.files.at("/runs/fake/metrics.jsonl"));
  std::vector<Parsed> epochs;
  for (std::string line; std::getline(lines, line);) {
    const Parsed json = Parsed::parse(line);
    if (json["kind"] == "epoch") epochs.push_back(json);
  }
  REQUIRE(epochs.size() == 2);
  CHECK(epochs[0]["epoch"] == 1);
  CHECK(epochs[0]["count"] == 8 * 7);
  CHECK(epochs[1]["epoch"] == 2);
  CHECK(epochs[1]["count"] == 8 * 9);
  CHECK(c.Status().epoch_rows_size() == 2);
}

TEST_CASE("the disconnection of a server is an event at once, and so is its return") {
  FakeCluster c(
      [](config::JobSpec&, JobOptions& o) { o.server_lost_after = std::chrono::seconds(12); });
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
  c.AddWorker("0");
  c.AddServer("0");
  c.AddServer("1");
  c.job->Start();
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
  c.job->OnServerAway(c.servers["1"].task, "its session closed");
  CHECK(EventsWith(
            c,
            "ps_server/1 disconnected (its session closed); waiting for it to reconnect (declared "
            "lost after 12 s)") == 1);
  c.Run([] { return false; }, std::chrono::seconds(2));
  c.AddServer("1", true);
  CHECK(EventsWith(c, "ps_server/1 reconnected after 2.0 s") == 1);
}

TEST_CASE("without training neither examples per second nor a remaining time is reported") {
  FakeCluster c;
  std::uint64_t first_held = 3;
  c.hold = [&](const FakeWorker&, const v1::Grant& g) {
    return Trains(g) && g.closure() >= first_held;
  };
  c.AddWorker("0");
  c.AddServer("0");
  c.AddServer("1");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() == 3; }));
  c.Run([] { return false; }, std::chrono::seconds(1));
  const double before = c.Status().examples_per_second();
  CHECK(before > 0);
  CHECK(c.Status().eta_seconds() >= 0);
  SECTION("the job waits for a server") {
    c.job->OnServerAway(c.servers["1"].task, "its session closed");
  }
  SECTION("a shard is repaired") {
    c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
    c.AddServer("1");
    c.FinishHeld(c.workers["0"]);
    c.Deliver();
    CHECK(c.Status().phase() == "repairing");
  }
  CHECK(c.Status().examples_per_second() == 0);
  CHECK(c.Status().eta_seconds() < 0);
}

// ---------------------------------------------------------------- workers that cannot take part

std::set<std::string> Unfit(const FakeCluster& c) {
  std::set<std::string> unfit;
  const v1::JobStatus status = c.Status();
  for (const v1::WorkerRow& row : status.workers()) {
    if (row.state() == "unfit") unfit.insert(row.identity());
  }
  return unfit;
}

TEST_CASE(
    "a worker that cannot take part fails no job while another can, and is tried ever later with "
    "one event") {
  const v1::Lack lack = GENERATE(v1::ABILITY, v1::INPUT);
  const bool deterministic = GENERATE(false, true);
  CAPTURE(lack, deterministic);
  FakeCluster c([&](config::JobSpec& s, JobOptions&) { s.strategy.deterministic = deterministic; });
  std::vector<MonoTime> tried;
  c.lacks = [&](const FakeWorker& w, const v1::Grant&) {
    if (w.identity == "0") tried.push_back(c.host.clock.Now());
    return w.identity == "0" ? lack : v1::NO_LACK;
  };
  v1::Hello other;
  other.set_compute("of another build");
  c.AddWorker("0");  // this worker registers first, so it is asked to describe the job
  c.AddWorker("1", other);
  c.AddServer("0");
  bool holds = true;
  c.hold = [&](const FakeWorker&, const v1::Grant& g) {
    return holds && Trains(g) && g.closure() >= 4;
  };
  c.job->Start();
  c.Run([] { return false; }, std::chrono::seconds(40));
  CHECK(c.job->state() == JobState::kRunning);
  CHECK(c.Status().closures_succeeded() == 4);
  CHECK(c.Status().waiting_for() == "");  // the job waits for nobody, because worker 1 works
  CHECK(EventsWith(c,
                   "worker/0 cannot take part in the job and is tried again from time to time: not "
                   "here: worker/0") == 1);
  CHECK(Unfit(c) == std::set<std::string>{"0"});
  if (deterministic) {
    // Worker 1 has trained closures. Worker 0 has another build, so its results would have other
    // bits, and it is not tried again.
    CHECK(tried.size() == 1);
  } else {
    CHECK(tried.size() >= 5);  // tried again after pauses of 1, 2, 4, 8 and 16 s
    CHECK(tried.size() <= 7);
  }
  holds = false;
  c.FinishHeld(c.workers["1"]);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  CHECK(c.Status().closures_succeeded() == 16);
}

TEST_CASE(
    "a job that no worker can describe fails with the cause, and a described job waits for an able "
    "worker with a report") {
  FakeCluster c;
  const bool described = GENERATE(false, true);
  CAPTURE(described);
  std::set<std::string> lame{"0", "1"};
  c.lacks = [&](const FakeWorker& w, const v1::Grant& g) {
    return lame.count(w.identity) != 0 && !(described && g.kind() == v1::DESCRIBE) ? v1::ABILITY
                                                                                   : v1::NO_LACK;
  };
  c.AddWorker("0");
  c.AddWorker("1");
  c.AddServer("0");
  c.job->Start();
  if (!described) {
    REQUIRE(c.RunToEnd());
    CHECK(c.job->state() == JobState::kFailed);
    CHECK(c.Status().first_cause().kind() == "user");
    CHECK(c.Status().first_cause().message() == "not here: worker/1");
    CHECK(c.granted.size() == 2);
    return;
  }
  c.Run([] { return false; }, std::chrono::seconds(200));
  CHECK(c.job->state() == JobState::kRunning);
  CHECK(c.Status().waiting_for() ==
        "workers: none of the connected workers can take part in the job: worker/0 (not here: "
        "worker/0), worker/1 "
        "(not here: "
        "worker/1)");
  CHECK(c.granted.size() < 40);  // each unfit worker is tried again at most once a minute
  CHECK(Unfit(c) == lame);
  SECTION("an able worker registers") { c.AddWorker("2"); }
  SECTION("an unfit worker is repaired") {
    lame.erase("1");
    const std::uint64_t before = c.Status().closures_succeeded();
    REQUIRE(c.Run([&] { return c.Status().closures_succeeded() > before; }));
  }
  SECTION("a worker returns as another process") {
    lame.clear();
    c.AddWorker("0");
  }
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  CHECK(c.Status().closures_succeeded() == 16);
}

TEST_CASE(
    "a worker that cannot take part does not fail the job before a registering worker has been "
    "tried") {
  FakeCluster c;
  c.lacks = [](const FakeWorker&, const v1::Grant&) { return v1::INPUT; };
  c.AddWorker("0");
  c.AddServer("0");
  v1::Hello hello;
  hello.set_process_uid(7);
  v1::Registered registered;
  const TaskId registering(999);
  c.job->AdmitWorker(registering, "1", MonoTime{0}, std::nullopt, false, hello, &registered);
  c.job->Start();
  c.Run([] { return false; }, std::chrono::seconds(10));
  CHECK(c.job->state() == JobState::kStarting);
  c.job->OnWorkerGone(registering, "its lease ran out", false);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kFailed);
}

TEST_CASE("workers that can train but not evaluate are reported once, not at each epoch") {
  FakeCluster c([](config::JobSpec& s, JobOptions&) { s.training.epochs = 6; });
  // The job starts after 700 s, which is longer than the time for which a worker's refusals are
  // kept.
  c.Run([] { return false; }, std::chrono::seconds(700));
  std::map<std::string, int> lacked;
  c.lacks = [&](const FakeWorker& w, const v1::Grant& g) {
    if (w.identity == "2" || g.kind() != v1::EVALUATE) return v1::NO_LACK;
    ++lacked[w.identity];
    return v1::INPUT;
  };
  c.hold = [](const FakeWorker& w, const v1::Grant& g) { return w.identity == "2" && Trains(g); };
  for (const char* identity : {"0", "1", "2"}) c.AddWorker(identity);
  c.AddServer("0");
  c.job->Start();
  // Before the next evaluation, workers 0 and 1 are tried again and train a closure.
  while (!c.Run([&] { return c.job->ended(); }, std::chrono::seconds(3))) {
    REQUIRE(c.host.clock.Now() < std::chrono::seconds(1000));
    c.FinishHeld(c.workers["2"]);
  }
  CHECK(c.job->state() == JobState::kSucceeded);
  for (const char* identity : {"0", "1"}) CHECK(lacked[identity] >= 2);
  for (const char* identity : {"0", "1"})
    CHECK(EventsWith(c, "worker/" + std::string(identity) + " cannot take part") == 1);
}

TEST_CASE(
    "the worker of a deterministic job that can no longer take part is reported as unfit, not as "
    "backing off") {
  FakeCluster c([](config::JobSpec& s, JobOptions&) { s.strategy.deterministic = true; });
  bool lost = true;
  c.lacks = [&](const FakeWorker&, const v1::Grant& g) {
    return lost && Trains(g) && c.Status().closures_succeeded() >= 4 ? v1::INPUT : v1::NO_LACK;
  };
  v1::Hello other;
  other.set_compute("of another build");
  c.AddWorker("0");
  c.AddWorker("1", other);
  c.AddServer("0");
  c.job->Start();
  c.Run([] { return false; }, std::chrono::seconds(10));
  CHECK(EventsWith(c, "deterministic: worker/0 cannot work now (it cannot take part in the job)") ==
        1);
  CHECK(c.job->state() == JobState::kRunning);
  lost = false;
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
}

TEST_CASE("a worker that cannot take part fails nothing while the able worker is disconnected") {
  FakeCluster c;
  c.lacks = [](const FakeWorker& w, const v1::Grant&) {
    return w.identity == "1" ? v1::INPUT : v1::NO_LACK;
  };
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g) && g.closure() >= 4; };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() == 4; }));
  c.AddWorker("1");
  c.KillWorker("0");
  c.Run([] { return false; }, std::chrono::seconds(100));
  CHECK(c.job->state() == JobState::kRunning);
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.AddWorker("0");
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  CHECK(c.Status().closures_succeeded() == 16);
}

TEST_CASE(
    "a re-run without its input is lost or ends the job, and a worker that still has the input "
    "runs it (line 33)") {
  const bool report = GENERATE(false, true), one_has_it = GENERATE(false, true);
  CAPTURE(report, one_has_it);
  FakeCluster c([&](config::JobSpec& spec, JobOptions&) {
    spec.training.on_lost_updates = report ? "report" : "fail";
  });
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::EVALUATE; };
  c.AddWorker("0");
  c.AddWorker("1");
  c.AddServer("0");
  c.AddServer("1");
  c.job->Start();
  REQUIRE(c.Run([&] {
    return c.Status().phase() == "evaluating" && !c.workers["0"].held.empty() &&
           !c.workers["1"].held.empty();
  }));
  const std::uint64_t trained = c.Status().closures_succeeded();
  c.lacks = [&](const FakeWorker& w, const v1::Grant& g) {
    return Trains(g) && !g.all_targets() && !(one_has_it && w.identity == "1") ? v1::INPUT
                                                                               : v1::NO_LACK;
  };
  c.AddServer("1");  // this is another process, so the two shards are lost
  const MonoTime began = c.host.clock.Now();
  if (!report && !one_has_it) {
    REQUIRE(c.RunToEnd());
    CHECK(c.job->state() == JobState::kFailed);
    CHECK_THAT(c.Status().first_cause().message(), Catch::StartsWith("not here: worker/"));
    return;
  }
  REQUIRE(c.Run([&] {
    return one_has_it ? c.Status().closures_rerun() >= trained
                      : c.Status().closures_lost() == trained;
  }));
  // The job waits for all workers at the same time, so the waits must not add up.
  CHECK(c.host.clock.Now() - began < std::chrono::seconds(10));
  CHECK(EventsWith(c, "cannot take part") <= 2);
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  for (const char* identity : {"0", "1"}) {
    c.FinishHeld(c.workers[identity]);
  }
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  CHECK(c.Status().closures_lost() == (one_has_it ? 0 : trained));
}

TEST_CASE(
    "a re-run without an able worker waits for recently disconnected workers as long as for a "
    "server") {
  const bool returns = GENERATE(false, true), restarted = GENERATE(false, true);
  CAPTURE(returns, restarted);
  MemoryStateStore::Options store;
  store.persistent = true;
  FakeCluster c(
      [](config::JobSpec&, JobOptions& o) { o.server_lost_after = std::chrono::seconds(10); },
      store);
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::EVALUATE; };
  c.lacks = [](const FakeWorker& w, const v1::Grant& g) {
    return w.identity == "lame" && Trains(g) ? v1::INPUT : v1::NO_LACK;
  };
  c.AddWorker("0");
  c.AddServer("0");
  c.AddServer("1");
  c.job->Start();
  REQUIRE(
      c.Run([&] { return c.Status().phase() == "evaluating" && !c.workers["0"].held.empty(); }));
  const std::uint64_t trained = c.Status().closures_succeeded();
  c.AddWorker("lame");
  c.KillWorker("0");
  if (restarted) c.Restart();
  c.AddServer("1");  // this is another process, so the two shards are lost
  c.Run([] { return false; }, std::chrono::seconds(9));
  CHECK(c.job->state() == JobState::kRunning);
  CHECK_THAT(c.Status().waiting_for(), Catch::Contains("worker/lame (not here: worker/lame)"));
  if (!returns) {
    REQUIRE(c.Run([&] { return c.job->ended(); }, std::chrono::seconds(3)));
    CHECK(c.job->state() == JobState::kFailed);
    CHECK(c.Status().first_cause().message() == "not here: worker/lame");
    return;
  }
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.AddWorker("0");
  c.FinishHeld(c.workers["lame"]);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  CHECK(c.Status().closures_lost() == 0);
  CHECK(c.Status().closures_rerun() >= trained);
}

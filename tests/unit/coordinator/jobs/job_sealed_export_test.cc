// Tests the export of the weights of a job that has failed, and the job's reports about this
// export.
#include <catch2/catch.hpp>

#include "job_fixture.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;

bool Trains(const v1::Grant& g) { return g.kind() == v1::TRAIN; }

std::size_t Exports(const FakeCluster& c) {
  return static_cast<std::size_t>(
      std::count_if(c.granted.begin(), c.granted.end(),
                    [](const v1::Grant& g) { return g.kind() == v1::EXPORT; }));
}

std::function<void(config::JobSpec&, JobOptions&)> Saving(bool on = true) {
  return [on](config::JobSpec& spec, JobOptions&) {
    spec.checkpoint.on = on;
    spec.checkpoint.given = on;
    spec.checkpoint.every = milliseconds(200);
  };
}

// Trains four closures. Worker/0 then reports a user's error in the fifth closure.
void FailAfterFour(FakeCluster& c) {
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return (Trains(g) && g.closure() >= 4); };
  c.AddWorker("0");
  c.AddServer("0");
  c.AddServer("1");
  c.job->Start();
  REQUIRE(
      c.Run([&] { return c.Status().closures_succeeded() == 4 && !c.workers["0"].held.empty(); }));
}
void Fail(FakeCluster& c) {
  c.FailGrant(c.workers["0"], v1::Grant(c.workers["0"].held[0]), "bad record: line=7", true);
}

void EndsAsItFailed(const FakeCluster& c) {
  CHECK(c.job->state() == JobState::kFailed);
  CHECK(c.Status().state() == "FAILED");
  CHECK(c.Status().first_cause().message() == "bad record: line=7");
  for (const auto& [identity, server] : c.servers) CHECK(server.ended);
}

}  // namespace

TEST_CASE(
    "a failed job's weights are exported by a remaining worker after the checkpoint, and the "
    "failure stays") {
  FakeCluster c(Saving(GENERATE(true, false)));
  FailAfterFour(c);
  bool knows_again = false;
  c.hold = [&](const FakeWorker& worker, const v1::Grant& g) {
    if (g.kind() == v1::EXPORT) {
      knows_again = worker.map.shards_size() == 4;
      for (const auto& [identity, server] : c.servers) {
        for (const auto& [p, shard] : server.shards) CHECK(shard.sealed);
      }
      CHECK(c.Status().phase() == "exporting");
    }
    return Trains(g);
  };
  Fail(c);
  REQUIRE(c.RunToEnd());
  EndsAsItFailed(c);
  CHECK(Exports(c) == 1);
  CHECK(knows_again);
  CHECK(c.Status().weights_exported());
  CHECK_THAT(AllEvents(c), Contains("weights written on host far") && !Contains("not exported"));
  CHECK((c.Status().checkpoint().number() > 0) == c.spec.checkpoint.on);
  CHECK(c.workers["0"].ended_state == "FAILED");
}

TEST_CASE(
    "a failed job without a remaining worker names its checkpoint and the command that exports "
    "it") {
  FakeCluster c(Saving());
  FailAfterFour(c);
  Fail(c);
  c.KillWorker("0");
  REQUIRE(c.RunToEnd());
  EndsAsItFailed(c);
  CHECK(Exports(c) == 0);
  CHECK_FALSE(c.Status().weights_exported());
  CHECK_THAT(AllEvents(c),
             Contains("not exported: no worker was left to write the weights; checkpoint ") &&
                 Contains("psctl checkpoint export " + c.Status().checkpoint().uri() +
                          " --to weights.npz"));
}

TEST_CASE(
    "an export that fails after the job's failure is tried by each worker, and does not change the "
    "failure") {
  const bool user = GENERATE(true, false);
  FakeCluster c(Saving());
  FailAfterFour(c);
  c.AddWorker("1");
  c.hold = [](const FakeWorker&, const v1::Grant&) { return true; };
  Fail(c);
  for (int i = 0; i < 20 && !c.job->ended(); ++i) {
    c.Run([&] {
      return c.job->ended() || !c.workers["0"].held.empty() || !c.workers["1"].held.empty();
    });
    for (const char* name : {"0", "1"}) {
      FakeWorker& worker = c.workers[name];
      for (const v1::Grant& grant : std::vector<v1::Grant>(worker.held))
        c.FailGrant(worker, grant, "the runs folder cannot be written", user);
    }
  }
  REQUIRE(c.RunToEnd());
  EndsAsItFailed(c);
  CHECK(Exports(c) == (user ? 2 : 3));
  CHECK_THAT(AllEvents(c),
             Contains("not exported: the runs folder cannot be written; checkpoint "));
  CHECK_FALSE(c.Status().weights_exported());
}

TEST_CASE("an export that does not end is cancelled after a time limit, and the worker is told") {
  FakeCluster c(Saving());
  FailAfterFour(c);
  c.hold = [](const FakeWorker&, const v1::Grant&) { return true; };
  Fail(c);
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
  const MonoTime began = c.host.clock.Now();
  REQUIRE(c.Run([&] { return c.job->ended(); }, std::chrono::seconds(120)));
  EndsAsItFailed(c);
  CHECK(c.host.clock.Now() - began >= std::chrono::seconds(59));
  CHECK(c.host.clock.Now() - began <= std::chrono::seconds(65));
  CHECK_THAT(AllEvents(c), Contains("not exported: the export took too long"));
  CHECK(c.workers["0"].superseded.size() == 1);
}

TEST_CASE("a worker that dies while it exports a failed job's weights is replaced by another") {
  FakeCluster c(Saving());
  FailAfterFour(c);
  c.hold = [](const FakeWorker& worker, const v1::Grant& g) {
    return Trains(g) || worker.identity == "0";
  };
  Fail(c);
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
  CHECK(c.workers["0"].held[0].kind() == v1::EXPORT);
  c.KillWorker("0");
  c.AddWorker("1");
  REQUIRE(c.RunToEnd());
  EndsAsItFailed(c);
  CHECK(c.Status().weights_exported());
}

TEST_CASE(
    "a server that loses its shards during the export of a failed job ends the export and the "
    "job") {
  FakeCluster c(Saving());
  FailAfterFour(c);
  c.hold = [](const FakeWorker&, const v1::Grant&) { return true; };
  Fail(c);
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
  const MonoTime began = c.host.clock.Now();
  c.AddServer("1");
  REQUIRE(c.RunToEnd());
  EndsAsItFailed(c);
  CHECK(c.host.clock.Now() - began <= std::chrono::seconds(2));
  CHECK_THAT(AllEvents(c),
             Contains("not exported: a server lost its shards during the export; checkpoint "));
}

TEST_CASE(
    "a cancel of a failed job during the export of its weights does not wait for the export") {
  FakeCluster c(Saving());
  FailAfterFour(c);
  c.hold = [](const FakeWorker&, const v1::Grant&) { return true; };
  Fail(c);
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
  c.job->Cancel();
  c.Deliver();
  EndsAsItFailed(c);
  CHECK_THAT(AllEvents(c), Contains("not exported: the job was cancelled meanwhile"));
}

TEST_CASE("a job that fails before training exports nothing and does not mention an export") {
  FakeCluster c(Saving());
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return Trains(g); };
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
  Fail(c);
  REQUIRE(c.RunToEnd());
  EndsAsItFailed(c);
  CHECK(Exports(c) == 0);
  CHECK_THAT(AllEvents(c), !Contains("exported"));
}

TEST_CASE("a cancelled job keeps a checkpoint of its end and exports nothing") {
  FakeCluster c(Saving());
  FailAfterFour(c);
  c.job->Cancel();
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kCancelled);
  CHECK(Exports(c) == 0);
  CHECK(c.Status().checkpoint().number() > 0);
}

TEST_CASE(
    "a coordinator that restarts during the export of a failed job's weights exports them again") {
  MemoryStateStore::Options persistent;
  persistent.persistent = true;
  FakeCluster c(Saving(), persistent);
  FailAfterFour(c);
  c.hold = [](const FakeWorker&, const v1::Grant&) { return true; };
  Fail(c);
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.Restart();
  REQUIRE(c.RunToEnd());
  EndsAsItFailed(c);
  CHECK(c.Status().weights_exported());
}

}  // namespace evergrad::coordinator

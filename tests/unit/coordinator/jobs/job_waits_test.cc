// Tests the text that tells users for which tasks or resources a job waits, without a Job object.
#include "coordinator/jobs/job_waits.h"

#include <catch2/catch.hpp>

#include "work_fixture.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;

// A job that is training, with two workers and two servers.
struct Fixture : WorkFixture {
  Fixture() { Apply({PhaseEvent::kStarted, PhaseEvent::kPlanned, PhaseEvent::kPlaced}); }
  void Apply(const std::vector<PhaseEvent>& events_of_phases) {
    for (const PhaseEvent event : events_of_phases) REQUIRE(phases.Apply(event));
  }
  void LoseServer() {
    shards.Find(kSecond)->ready = false;
    shards.Find(kSecond)->away_since = host.Now();
  }

  JobPhases phases;
  FinalReport report{Part()};
  ShardSeal seal{Part()};
  DeathBackoff backoff{options.death_backoff};
  ShardPlacer placer{Part(), &backoff, &report.queries()};
  ReachWatch reach{Part(),
                   &roster,
                   {.others_can = [](const auto&, const auto&) { return false; },
                    .pass_on = [](JobWorker&, const v1::UnreachedServer&) {}}};
  ExportFiles exports{
      Part(), &reading, &rounds, {.again = [](MonoTime) {}, .done = [] {}, .gave_up = [](auto) {}}};
  JobWaits waits{Part(),
                 {.phases = &phases,
                  .roster = &roster,
                  .placer = &placer,
                  .reach = &reach,
                  .exports = &exports,
                  .report = &report,
                  .rounds = &rounds,
                  .seal = &seal,
                  .source = &source}};
};

TEST_CASE("a job whose workers and servers are here waits for nothing") {
  Fixture f;
  CHECK(f.waits.Text().empty());
  CHECK_FALSE(f.waits.TrainingPaused());
}

TEST_CASE("a job without usable workers and without a server names both") {
  Fixture f;
  f.roster.workers().clear();
  CHECK(f.waits.Text() == "workers: none is connected");
  CHECK(f.waits.TrainingPaused());
  f.LoseServer();
  CHECK(f.waits.Text() ==
        "workers: none is connected; servers: ps_server/b has been disconnected for 0 s and holds "
        "1 shard");
  f.AddWorker(7);
  CHECK_THAT(f.waits.Text(), Catch::Matchers::StartsWith("servers: ps_server/b"));
}

TEST_CASE("a job that must be described waits for workers alone") {
  Fixture f;
  f.phases = JobPhases();
  f.Apply({PhaseEvent::kStarted});
  f.LoseServer();
  CHECK(f.waits.Text().empty());
  f.roster.workers().clear();
  CHECK(f.waits.Text() == "workers: none is connected");
  CHECK_FALSE(f.waits.TrainingPaused());  // the job is not training yet
}

TEST_CASE("an unusable store comes first, and an open window before workers and servers") {
  Fixture f;
  f.roster.workers().clear();
  f.phases.OpenWindow();
  CHECK(f.waits.Text() == "tasks to register again");
  f.host.trouble = "no space";
  CHECK(f.waits.Text() == "the coordinator's journal: no space");
}

TEST_CASE("a wait of workers that are here is named if nothing else is missing") {
  Fixture f;
  f.worker(7).progress.set_state("paused");
  f.worker(7).progress.set_waiting_for("memory at ps_server/0");
  CHECK(f.waits.Text() == "memory at ps_server/0 (worker/7)");
  f.LoseServer();
  CHECK_THAT(f.waits.Text(), Catch::Matchers::StartsWith("servers: "));
}

TEST_CASE("a job that ends early waits for its seal, a checkpoint or a worker, not for its work") {
  Fixture f;
  f.roster.workers().clear();
  f.Apply({PhaseEvent::kFailed});
  f.seal.Begin();
  CHECK(f.waits.Text() == "servers to seal their shards: 2 left");
  f.Apply({PhaseEvent::kSealed});
  CHECK(f.waits.Text().empty());
  f.Apply({PhaseEvent::kSealedExportDue});
  CHECK(f.waits.Text() == "a worker to write the weights of the failed job");
  f.Apply({PhaseEvent::kFinished});
  CHECK(f.waits.Text().empty());
  f.Apply({PhaseEvent::kWritten});
  f.host.trouble = "no space";
  CHECK(f.waits.Text().empty());
}

TEST_CASE("a final report that is not complete names the servers that it waits for") {
  Fixture f;
  f.Apply({PhaseEvent::kTrained, PhaseEvent::kExported});
  f.report.Begin(FinalReport::Kind::kComplete, [] {});
  CHECK_THAT(f.waits.Text(), Contains("to be summed by ps_server/a"));
  f.LoseServer();
  CHECK_THAT(f.waits.Text(), Catch::Matchers::StartsWith("servers: "));
}

}  // namespace
}  // namespace evergrad::coordinator

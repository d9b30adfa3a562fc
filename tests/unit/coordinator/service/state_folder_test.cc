// Tests a coordinator whose state folder is removed while it runs.
#include <catch2/catch.hpp>
#include <filesystem>

#include "common/base/status.h"
#include "coordinator/store/sqlite_state_store.h"
#include "task_fixture.h"

namespace {

using namespace evergrad;
using namespace evergrad::coordinator;
using Catch::Matchers::Contains;

TEST_CASE(
    "after the removal of the state folder new jobs are refused, and the running job continues "
    "with a remedy in its message") {
  const test::TempFolder folder;
  const RealClock clock;
  log::Options quiet;
  quiet.level = log::Level::kError;
  log::Logger logger(quiet);
  metrics::Registry registry;
  fault::Failpoints failpoints;
  SqliteStoreOptions options;
  options.folder = folder / "state";
  options.look_every = std::chrono::hours(1);  // so that only commits check the folder
  auto store = SqliteStateStore::Open(
      options,
      {.clock = &clock, .logger = &logger, .registry = &registry, .failpoints = &failpoints});
  REQUIRE(store.ok());
  TestCluster c([](ControlOptions& o) { o.jobs_running_max = 1; }, store->get());
  c.AddServer("0", 1);
  REQUIRE(c.Submit(TestCluster::CountingYaml("runs")).ok());  // no worker runs this job yet
  REQUIRE(c.Submit(TestCluster::CountingYaml("waits")).ok());
  REQUIRE(c.WaitState("runs", "STARTING").ok());
  std::filesystem::remove_all(options.folder);
  const auto refused = c.Submit(TestCluster::CountingYaml("late"));
  CHECK(refused.status().code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(refused.status().message()),
             Contains("the state folder, or the journal in it, was removed or replaced"));
  CHECK(OriginOf(refused.status()) == "coordinator");
  // The next job must be refused before the coordinator has done anything for it.
  CHECK_THAT(std::string(c.Submit(TestCluster::CountingYaml("later")).status().message()),
             Contains("no new work is accepted: the state folder"));
  const auto runs = c.WaitJob("runs", [](const v1::JobStatus& s) { return s.events_size() > 0; });
  REQUIRE(runs.ok());
  std::string warnings;
  for (const v1::Event& event : runs->events())
    warnings += event.kind() == "warning" ? event.text() : "";
  CHECK_THAT(warnings,
             Contains("the coordinator's jobs continue, and are lost when the coordinator ends") &&
                 Contains("--state-dir"));
  const auto waits = c.WaitJob("waits", [](const v1::JobStatus&) { return true; });
  REQUIRE(waits.ok());
  CHECK(waits->state() == "QUEUED");
  CHECK_THAT(waits->waiting_for(), Contains("the state folder"));
  c.AddWorker("0", 2);
  CHECK(c.WaitState("runs", "SUCCEEDED").ok());
  CHECK(c.WaitJob("waits", [](const v1::JobStatus&) { return true; })->state() == "QUEUED");
  CHECK(c.WaitState("late", "CANCELLED").ok());
}

}  // namespace

// Tests how a failed job exports the weights of its sealed shards, without a Job object.
#include "coordinator/jobs/sealed_export.h"

#include <catch2/catch.hpp>

#include "reading_fixture.h"

namespace evergrad::coordinator {
namespace {

using std::chrono::seconds;

struct Fixture : ReadingFixture {
  explicit Fixture(std::uint64_t bytes = 0) {
    Place();
    options.seal_timeout = seconds(5);
    ShardQueries::Answer report;
    report.complete = true;
    REQUIRE(exporting.Begin(report, bytes));
  }
  // Returns the worker to which the export closure was granted since the last call, or 0.
  std::uint64_t Granted() {
    exporting.Pump();
    for (const std::uint64_t task : {3, 4}) {
      for (const v1::Grant& granted : Grants(task)) {
        grant = granted;
        return task;
      }
    }
    return 0;
  }
  // The worker `task` reports that the newest grant has failed.
  void ReportFailure(std::uint64_t task, bool user) {
    v1::Failed failed = Answer<v1::Failed>(grant);
    failed.set_user_error(user);
    failed.mutable_cause()->set_message("no device");
    roster.workers().at(TaskId(task)).DropAll();
    exporting.OnFailed(TaskId(task), failed);
  }
  bool NotExported(const std::string& why) const {
    return Said("warning: the weights of the failed job were not exported: " + why);
  }

  v1::Grant grant;
  v1::CheckpointStatus checkpoint;
  std::vector<TaskId> told;
  int over = 0;
  SealedExport exporting{
      Part(),
      &reading,
      &roster,
      &checkpoint,
      {.send_job = [this](TaskId task) { told.push_back(task); }, .over = [this] { ++over; }}};
};

TEST_CASE("a usable worker gets the job and the export of its weights") {
  Fixture f;
  f.AddWorker(3).leaving = true;
  f.AddWorker(4);
  CHECK(f.Granted() == 4);
  CHECK(f.grant.kind() == v1::EXPORT);
  CHECK(f.told == std::vector<TaskId>{TaskId(4)});
}

TEST_CASE("without a usable worker the export waits as long as a seal") {
  Fixture f;
  CHECK(f.Granted() == 0);
  CHECK(f.over == 0);
  f.host.clock.Advance(seconds(5));
  f.exporting.Pump();
  CHECK(f.NotExported("no worker was left to write the weights"));
  CHECK(f.over == 1);
  f.exporting.Pump();
  CHECK(f.over == 1);
}

TEST_CASE("a worker whose own error ended the export is not asked again, and its error is told") {
  Fixture f;
  f.AddWorker(3);
  REQUIRE(f.Granted() == 3);
  f.ReportFailure(3, /*user=*/true);
  f.host.clock.Advance(seconds(1));
  CHECK(f.Granted() == 0);
  CHECK(f.over == 0);
  SECTION("another worker is asked") {
    f.AddWorker(4);
    CHECK(f.Granted() == 4);
  }
  SECTION("there is no other worker") {
    f.host.clock.Advance(seconds(4));
    f.exporting.Pump();
    CHECK(f.NotExported("no device"));
  }
}

TEST_CASE("the third machine's error ends the export of a failed job") {
  Fixture f;
  f.AddWorker(3);
  for (int i = 0; i < 2; ++i) {
    REQUIRE(f.Granted() == 3);
    f.ReportFailure(3, /*user=*/false);
    CHECK(f.Granted() == 0);  // the next grant waits
    f.host.clock.Advance(f.options.retry_max);
  }
  REQUIRE(f.Granted() == 3);
  CHECK(f.over == 0);
  f.ReportFailure(3, /*user=*/false);
  CHECK(f.NotExported("no device"));
}

TEST_CASE("the export of a failed job ends when the map changes") {
  Fixture f;
  f.AddWorker(3);
  REQUIRE(f.Granted() == 3);
  f.book->Rollback(ShardId(0), "b");
  f.exporting.Pump();
  CHECK(f.NotExported("a server lost its shards during the export"));
  CHECK(f.Take(TaskId(3)).at(0).done_answer().superseded());
}

TEST_CASE("the export of a failed job has a minute, and a second more for 16 MiB of variables") {
  Fixture f(32ull << 20);
  f.AddWorker(3);
  REQUIRE(f.Granted() == 3);
  f.host.clock.Advance(seconds(61));
  f.exporting.Pump();
  CHECK(f.over == 0);
  f.host.clock.Advance(seconds(1));
  f.exporting.Pump();
  CHECK(f.NotExported("the export took too long"));
}

TEST_CASE("shards that are missing at the servers are not exported") {
  Fixture f;
  ShardQueries::Answer report;
  report.shards.emplace_back();
  CHECK_FALSE(f.exporting.Begin(report, 0));
  CHECK(f.NotExported("only 1 of 2 shards were left at their servers"));
}

TEST_CASE("an event names the checkpoint that has the weights of a failed job") {
  Fixture f;
  f.exporting.GiveUp("w");
  CHECK(f.NotExported("w; the job has no checkpoint either"));
  f.checkpoint.set_number(4);
  f.checkpoint.set_uri("/runs/c/m4");
  f.exporting.GiveUp("w");
  CHECK(f.NotExported(
      "w; checkpoint 4 has them: psctl checkpoint export /runs/c/m4 --to weights.npz"));
}

}  // namespace
}  // namespace evergrad::coordinator

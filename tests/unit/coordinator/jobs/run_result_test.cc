// Tests result.json, the end line of metrics.jsonl, and the data of the report. The tests make them
// from given facts, without a Job object.
#include "coordinator/jobs/run_result.h"

#include <catch2/catch.hpp>
#include <limits>

#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

using std::chrono::seconds;

// The facts of a job that was cancelled in the queue, so that it has no plan. The tests add further
// facts.
struct Fixture {
  Fixture() {
    id.uid = JobUid(0xabc);
    id.spec.name = "part";
    id.yaml = "name: part\n";
    times.submitted_ms = 1'700'000'000'000;
    times.started_ms = 1'700'000'001'000;
    times.ended_ms = 1'700'000'003'500;
    times.started_at = seconds(10);
    times.ended_at = seconds(12);
  }
  RunFacts Facts() const {
    return {.id = id,
            .times = times,
            .started = started,
            .state = state,
            .cause = cause ? &*cause : nullptr,
            .epochs = epochs,
            .rate = rate,
            .closures = closures,
            .tasks = tasks,
            .events = events,
            .plan = plan ? &*plan : nullptr,
            .model_summary = summary,
            .shards = shards,
            .checkpoint = checkpoint,
            .files = files,
            .source = source};
  }
  void AddShard(std::uint32_t number, const std::string& server, std::uint64_t table_rows) {
    v1::ShardState& shard = shards.shards.emplace_back();
    shard.set_shard(number);
    shard.set_variable(table_rows == 0 ? "w" : "");
    shard.set_row_end(table_rows == 0 ? 4 : 0);
    if (table_rows != 0) shard.add_tables()->set_rows(table_rows);
    shard.set_bytes(16);
    shard.set_lsn(7);
    shard.set_updates_applied(3);
    shards.servers.push_back(server);
  }

  JobIdentity id;
  RunTimes times;
  bool started = false;
  std::string state = "CANCELLED";
  std::optional<v1::ErrorDetail> cause;
  EpochAccount epochs{{}, MonoTime{0}};
  TrainingRate rate{10};
  ClosureCounts closures;
  TaskTotals tasks;
  EventLog events{10};
  std::optional<v1::Plan> plan;
  std::string summary = "one layer";
  ShardQueries::Answer shards;
  v1::CheckpointStatus checkpoint;
  std::vector<v1::RunFileInfo> files;
  Json source = Json::object();
};

constexpr char kNeverBegan[] = R"({
  "schema_version": 1,
  "name": "part",
  "uid": "0000000000000abc",
  "start": null,
  "end": "2023-11-14T22:13:23.500Z",
  "seconds": 0.0,
  "state": "CANCELLED",
  "first_cause": null,
  "metrics": {},
  "examples_per_second": null,
  "tasks": [],
  "closures": {
    "succeeded": 0,
    "failed": 0,
    "cancelled": 0,
    "attempts": 0
  },
  "duplicates_refused": 0,
  "repair": {
    "shards_rolled_back": 0,
    "closures_rerun": 0,
    "updates_redone": 0
  },
  "updates_exact": false,
  "lost": {
    "closures": 0,
    "updates": 0
  },
  "checkpoint": null,
  "checkpoint_trouble": null,
  "resumed_from": null,
  "lines_lost": 0,
  "files": [],
  "deaths": [],
  "tables": [],
  "shards": []
}
)";

TEST_CASE("result.json of a job that never began has every field, byte by byte") {
  Fixture f;
  CHECK(ResultJson(f.Facts(), 0) == kNeverBegan);
}

constexpr char kFailed[] = R"({
  "schema_version": 1,
  "name": "part",
  "uid": "0000000000000abc",
  "start": "2023-11-14T22:13:21.000Z",
  "end": "2023-11-14T22:13:23.500Z",
  "seconds": 2.0,
  "state": "FAILED",
  "first_cause": {
    "origin": "worker/0",
    "kind": "user",
    "message": "nan in loss"
  },
  "metrics": {
    "auc": 0.75,
    "loss": null,
    "accuracy": 0.5,
    "rows": 9
  },
  "examples_per_second": null,
  "tasks": [
    {
      "role": "worker",
      "identity": "0",
      "steps": 4,
      "bytes": 0
    },
    {
      "role": "ps_server",
      "identity": "a",
      "steps": 3,
      "bytes": 0
    },
    {
      "role": "ps_server",
      "identity": "b",
      "steps": 3,
      "bytes": 0
    }
  ],
  "closures": {
    "succeeded": 0,
    "failed": 1,
    "cancelled": 2,
    "attempts": 6
  },
  "functions": {
    "results_given_up": 1
  },
  "duplicates_refused": 0,
  "repair": {
    "shards_rolled_back": 1,
    "closures_rerun": 3,
    "updates_redone": 4
  },
  "updates_exact": true,
  "lost": {
    "closures": 5,
    "updates": 10
  },
  "checkpoint": {
    "number": 2,
    "path": "/c/m2",
    "complete": true,
    "written_ms": 77
  },
  "checkpoint_trouble": "no space",
  "resumed_from": "/c/m1",
  "lines_lost": 6,
  "files": [
    {
      "name": "weights.npz",
      "bytes": 3,
      "sha256": "01ff"
    }
  ],
  "deaths": [
    {
      "task": "ps_server/1",
      "role": "ps_server",
      "identity": "1",
      "reason": "killed",
      "wall_ms": 55
    }
  ],
  "tables": [
    {
      "table": "item",
      "dimension": 8,
      "rows": 20
    }
  ],
  "shards": [
    {
      "shard": 0,
      "variable": "w",
      "rows": 4,
      "bytes": 16,
      "server": "a",
      "lsn": 7,
      "updates_applied": 3
    },
    {
      "shard": 1,
      "variable": "",
      "rows": 20,
      "bytes": 16,
      "server": "b",
      "lsn": 7,
      "updates_applied": 3
    }
  ]
}
)";

TEST_CASE("result.json of a job that has failed has every fact, byte by byte") {
  Fixture f;
  f.started = true;
  f.state = "FAILED";
  f.cause.emplace();
  f.cause->set_origin_text("worker/0");
  f.cause->set_kind("user");
  f.cause->set_message("nan in loss");
  f.id.spec.model.metrics = {"auc"};
  EvaluationResult evaluation;
  evaluation.metrics = {
      {"accuracy", 0.5}, {"auc", 0.75}, {"loss", std::numeric_limits<double>::quiet_NaN()}};
  evaluation.counts = {{"rows", 9}};
  v1::JobSnapshot evaluated;
  evaluation.Fill(&evaluated);
  REQUIRE(f.epochs.Read(evaluated, /*ended=*/true).ok());
  f.tasks.BeginWorker("0", 1);
  f.tasks.CountClosure("0", 4, 40);
  f.closures = {.failed = 1,
                .cancelled = 2,
                .attempts = 6,
                .rerun = 3,
                .updates_redone = 4,
                .lost = 5,
                .updates_lost = 10};
  f.source["functions"] = Json{{"results_given_up", 1}};
  f.checkpoint.set_number(2);
  f.checkpoint.set_uri("/c/m2");
  f.checkpoint.set_complete(true);
  f.checkpoint.set_written_ms(77);
  f.checkpoint.set_trouble("no space");
  f.checkpoint.set_resumed_from("/c/m1");
  v1::RunFileInfo& file = f.files.emplace_back();
  file.set_name("weights.npz");
  file.set_bytes(3);
  file.set_sha256("\x01\xff");
  f.events.AddDeath({Role::kPsServer, "1", "killed", 55}, nullptr);
  f.plan.emplace();
  f.plan->add_tables()->set_name("item");
  f.plan->mutable_tables(0)->set_dimension(8);
  f.AddShard(0, "a", 0);
  f.AddShard(1, "b", 20);
  RunFacts facts = f.Facts();
  facts.shards_rolled_back = 1;
  facts.updates_exact = true;
  CHECK(ResultJson(facts, 6) == kFailed);
}

TEST_CASE("the number of lost lines can be corrected, and nothing else of the result changes") {
  Fixture f;
  CHECK(WithLinesLost(ResultJson(f.Facts(), 2), 5) == ResultJson(f.Facts(), 5));
  CHECK(WithLinesLost("no result", 5) == "no result");
}

TEST_CASE("the end line has the state and the numbers of missing lines") {
  Fixture f;
  CHECK(EndLine(f.Facts(), 3) ==
        R"({"kind":"end","wall_ms":1700000003500,"state":"CANCELLED","step_lines_dropped":0,)"
        R"("lines_lost":3})");
}

TEST_CASE("the report has the events with their seconds since the submission, and the end last") {
  Fixture f;
  f.events.Add("state", "submitted", 1'700'000'000'000, nullptr);
  f.events.Add("warning", "slow", 1'700'000'002'000, nullptr);
  f.cause.emplace();
  f.cause->set_origin_text("worker/0");
  f.cause->set_message("nan in loss");
  f.closures.rerun = 3;
  f.AddShard(1, "b", 20);
  const ReportData data = MakeReport(f.Facts());
  CHECK(data.submitted == "2023-11-14 22:13:20 UTC");
  CHECK(data.seconds == 2.0);
  CHECK(data.first_cause == "worker/0: nan in loss");
  CHECK(data.reruns == 3);
  CHECK(data.model_summary == "one layer");
  CHECK(data.yaml == "name: part\n");
  REQUIRE(data.shards.size() == 1);
  CHECK(data.shards[0].server == "ps_server/b");
  CHECK(data.shards[0].rows == 20);
  REQUIRE(data.events.size() == 3);
  CHECK(data.events[1].seconds == 2.0);
  CHECK(data.events[1].text == "slow");
  CHECK(data.events[2].seconds == 3.5);
  CHECK(data.events[2].text == "CANCELLED");
}

}  // namespace
}  // namespace evergrad::coordinator

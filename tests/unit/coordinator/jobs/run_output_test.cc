// Tests the files of a run and the folder `model`, without a Job object.
#include "coordinator/jobs/run_output.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "part_fixture.h"
#include "tests/support/temp_folder.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;

struct Fixture : PartFixture {
  RunFacts Facts() const {
    return {.id = id,
            .times = times,
            .state = "SUCCEEDED",
            .cause = nullptr,
            .epochs = epochs,
            .rate = rate,
            .tasks = tasks,
            .events = events,
            .plan = &plan_message,
            .model_summary = id.yaml,
            .shards = shards,
            .checkpoint = checkpoint,
            .files = files};
  }
  const std::string& File(const std::string& name) {
    return host.files[id.runs_folder + "/" + name];
  }
  bool HasFile(const std::string& name) const {
    return host.files.count(id.runs_folder + "/" + name) != 0;
  }
  // Commits the pending lines to the journal and then writes them, as a job does.
  void Flush() {
    output.lines().Commit(/*durable=*/true);
    output.lines().Write();
  }
  void AddEvent(const std::string& text) {
    v1::Event event;
    event.set_kind("state");
    event.set_text(text);
    event.set_wall_ms(5);
    output.AddEvent(event);
  }
  // Makes the job a training job whose model has a loss.
  void MakeModel() {
    id.spec.type = "training";
    id.spec.model.losses.emplace_back();
  }

  RunTimes times;
  EpochAccount epochs{{}, MonoTime{0}};
  TrainingRate rate{10};
  TaskTotals tasks;
  EventLog events{10};
  ShardQueries::Answer shards;
  v1::CheckpointStatus checkpoint;
  std::vector<v1::RunFileInfo> files;
  int written = 0;
  RunOutput output{Part(), {.facts = [this] { return Facts(); }, .written = [this] { ++written; }}};
};

TEST_CASE("a run begins with its mark and its YAML") {
  Fixture f;
  f.id.yaml = "name: part\n";
  f.output.WriteJobFile();
  CHECK(f.File("job.yaml") == "name: part\n");
  CHECK(f.HasFile(client::kRunMarkFile));
}

TEST_CASE("events and rates are lines, and no event follows the end line") {
  Fixture f;
  f.AddEvent("one");
  f.rate.Sample(MonoTime{0}, seconds(2), 8);
  f.output.AddRate(f.rate, f.epochs);
  f.output.MakeResult();
  f.AddEvent("two");
  f.Flush();
  f.RunFileThread();
  CHECK(f.File("metrics.jsonl") ==
        R"({"kind":"event","wall_ms":5,"event":"state","text":"one"})"
        "\n"
        R"({"kind":"rate","seconds":2.0,"examples_per_second":4.0,"steps_done":0,)"
        R"("closures_done":0})"
        "\n"
        R"({"kind":"end","wall_ms":0,"state":"SUCCEEDED","step_lines_dropped":0,"lines_lost":0})"
        "\n");
}

TEST_CASE("the files of the end follow the last lines, and the job is told when they are written") {
  Fixture f;
  f.output.MakeResult();
  f.Flush();
  f.output.Write(/*model=*/true);
  CHECK_FALSE(f.HasFile("result.json"));  // the file thread has not written the end line yet
  f.RunFileThread();
  CHECK(f.File("result.json") == f.output.result());
  CHECK_THAT(f.File("report.html"), Contains("SUCCEEDED"));
  CHECK_FALSE(f.HasFile("model/model.json"));  // this type of job has no model
  CHECK(f.written == 1);
}

TEST_CASE("result.json has the number of the last lines that a full disk has lost") {
  Fixture f;
  f.host.lines_bytes_max = 0;
  f.AddEvent("one");
  f.output.MakeResult();
  CHECK_THAT(f.output.result(), Contains("\"lines_lost\": 0"));
  f.Flush();
  f.output.Write(/*model=*/false);
  for (int i = 0; i < 10 && f.written == 0; ++i) {
    f.RunFileThread();
    f.host.clock.Advance(seconds(1));
    f.output.lines().Write();
  }
  CHECK(f.written == 1);
  CHECK_THAT(f.File("result.json"), Contains("\"lines_lost\": 2"));
  CHECK(f.File("result.json") == f.output.result());
}

TEST_CASE("a result that comes from the journal is written, and no event follows its end line") {
  Fixture before, f;
  before.output.MakeResult();
  v1::JobSnapshot snapshot;
  before.output.Fill(/*queued=*/false, /*ended=*/false, &snapshot);
  f.output.Read(snapshot);
  f.output.lines().Resume();
  f.AddEvent("two");
  f.output.Write(/*model=*/false);
  f.RunFileThread();
  CHECK(f.File("result.json") == before.output.result());
  CHECK_THAT(f.File("metrics.jsonl"), Contains("\"kind\":\"end\"") && !Contains("two"));
}

TEST_CASE("the model's folder is written before result.json if the job succeeds") {
  Fixture f;
  test::TempFolder folder;
  f.id.runs_folder = folder.path();
  f.MakeModel();
  std::ofstream(folder / "weights.npz") << "weights";
  const bool succeeds = GENERATE(false, true);
  f.output.MakeResult();
  f.output.Write(succeeds);
  f.RunFileThread();
  CHECK(f.written == 1);
  CHECK(f.HasFile("result.json"));
  for (const char* name : {"model/model.json", "model/load.py", "model/README.md"}) {
    CAPTURE(name);
    CHECK(f.HasFile(name) == succeeds);
  }
  CHECK(std::filesystem::exists(folder / "model/weights.npz") == succeeds);
}

TEST_CASE("tables that cannot be read leave the model without tables.npz, and an event says why") {
  Fixture f;
  test::TempFolder folder;
  f.id.runs_folder = folder.path();
  f.MakeModel();
  f.plan_message.add_tables()->set_name("item");
  f.checkpoint.set_complete(true);
  f.checkpoint.set_uri("/runs/nowhere/manifest");
  f.output.MakeResult();
  f.output.Write(/*model=*/true);
  f.RunFileThread();
  CHECK(f.Said("state: model/tables.npz is not written: "));
  CHECK(f.HasFile("model/README.md"));
  CHECK(f.written == 1);
}

}  // namespace
}  // namespace evergrad::coordinator

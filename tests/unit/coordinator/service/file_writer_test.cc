// Tests how the coordinator writes the files of runs. Both threads are manual executors, and the
// folder is a real one.
#include "coordinator/service/file_writer.h"

#include <catch2/catch.hpp>

#include "common/fs/file.h"
#include "tests/support/manual_executor.h"
#include "tests/support/temp_folder.h"

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

struct Stage {
  ManualClock clock;
  runtime::ManualExecutor control{&clock}, files{&clock};
  log::Logger logger{[] {
    log::Options options;
    options.level = log::Level::kError;
    return options;
  }()};
  metrics::Registry registry;
  FileWriter writer{{&control, &files, &clock, &logger, &registry}, 10};
  const test::TempFolder folder;

  std::vector<absl::Status> done;
  FileWriter::Done Done() {
    return [this](absl::Status status) { done.push_back(std::move(status)); };
  }
  std::string Read(const std::string& name) const {
    const auto text = fs::ReadFile(folder / name, 1 << 20);
    return text.ok() ? *text : std::string(text.status().message());
  }
};

}  // namespace

TEST_CASE("files are written on the file thread, and the caller is told on its own thread") {
  Stage stage;
  stage.writer.WriteFiles(
      stage.folder / "run",
      {{"a", [] { return std::string("1"); }}, {"model/b", [] { return std::string("2"); }}},
      stage.Done());
  CHECK_FALSE(fs::Exists(stage.folder / "run/a"));
  stage.files.RunReady();
  CHECK(stage.Read("run/a") == "1");
  CHECK(stage.Read("run/model/b") == "2");
  CHECK(stage.done.empty());
  stage.control.RunReady();
  REQUIRE(stage.done.size() == 1);
  CHECK(stage.done[0].ok());
}

TEST_CASE("lines are appended in order, after the end of the file is restored") {
  Stage stage;
  stage.writer.RestoreLines(stage.folder / "run", "metrics.jsonl", 0, "a\n", stage.Done());
  stage.writer.AppendLines(stage.folder / "run", "metrics.jsonl", "b\n", stage.Done());
  stage.writer.AppendLines(stage.folder / "run", "metrics.jsonl", "c\nd\n", stage.Done());
  stage.files.RunReady();
  stage.control.RunReady();
  CHECK(stage.done.size() == 3);
  CHECK(stage.Read("run/metrics.jsonl") == "a\nb\nc\nd\n");
  stage.writer.RestoreLines(stage.folder / "run", "metrics.jsonl", 4, "c\n", stage.Done());
  stage.files.RunReady();
  stage.control.RunReady();
  CHECK(stage.Read("run/metrics.jsonl") == "a\nb\nc\n");
}

TEST_CASE("lines above the limit are refused until earlier ones have been written") {
  Stage stage;
  REQUIRE(fs::MakeDirectories(stage.folder / "run").ok());
  stage.writer.AppendLines(stage.folder / "run", "l", "12345678\n", stage.Done());
  stage.writer.AppendLines(stage.folder / "run", "l", "abc\n", stage.Done());
  stage.control.RunReady();
  REQUIRE(stage.done.size() == 1);
  CHECK(absl::IsResourceExhausted(stage.done[0]));
  stage.writer.UpdateMetrics();
  CHECK(stage.registry.PrometheusText().find("evergrad_coordinator_file_bytes_current 8") !=
        std::string::npos);
  stage.files.RunReady();
  stage.writer.AppendLines(stage.folder / "run", "l", "abc\n", stage.Done());
  stage.files.RunReady();
  stage.control.RunReady();
  CHECK(stage.done.size() == 3);
  CHECK(stage.Read("run/l") == "12345678\nabc\n");
}

TEST_CASE("a failed write is returned to its caller and counted") {
  Stage stage;
  stage.writer.AppendLines(stage.folder / "missing", "l", "a\n", stage.Done());
  stage.files.RunReady();
  stage.control.RunReady();
  REQUIRE(stage.done.size() == 1);
  CHECK_FALSE(stage.done[0].ok());
  CHECK(stage.registry.PrometheusText().find("evergrad_coordinator_file_bytes_refused_total 1") !=
        std::string::npos);
}

TEST_CASE("work on the file thread returns its result to the control executor") {
  Stage stage;
  std::string order;
  stage.writer.Run([&] {
    order += "work";
    return [&order] { order += " result"; };
  });
  stage.control.RunReady();
  CHECK(order.empty());
  stage.files.RunReady();
  CHECK(order == "work");
  stage.control.RunReady();
  CHECK(order == "work result");
}

#include "coordinator/runs/run_copy.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <vector>

#include "common/fs/file.h"
#include "tests/support/temp_folder.h"

namespace evergrad::coordinator {
namespace {

struct Stage {
  test::TempFolder temp;
  fault::Failpoints failpoints;
  std::unique_ptr<fs::FileSystem> files = fs::MakeLocalFileSystem({.failpoints = &failpoints});
  std::string run = temp / "runs/mnist-1", target = temp / "copies";
  RunCopy copy{target, files.get()};

  Stage() {
    REQUIRE(fs::MakeDirectories(run + "/model").ok());
    REQUIRE(fs::MakeDirectories(run + "/checkpoint").ok());
    Write("metrics.jsonl", "1\n");
    Write("result.json", "{}");
    Write("model/model.json", "m");
    Write("checkpoint/shard", "s");
    Write(".hidden", "h");
  }
  void Write(const std::string& name, const std::string& text) {
    REQUIRE(fs::WriteFileAtomic(run + "/" + name, text).ok());
  }
  std::string Copied(const std::string& name) {
    return fs::ReadFile(target + "/mnist-1/" + name, 1000).value_or("absent");
  }
};

TEST_CASE("the files of a run are copied, except its checkpoints and hidden files") {
  Stage stage;
  CHECK(*stage.copy.Copy(stage.run, false) == 3);
  CHECK(stage.Copied("metrics.jsonl") == "1\n");
  CHECK(stage.Copied("result.json") == "{}");
  CHECK(stage.Copied("model/model.json") == "m");
  CHECK(stage.Copied("checkpoint/shard") == "absent");
  CHECK(stage.Copied(".hidden") == "absent");
}

TEST_CASE("only files that have changed are copied again") {
  Stage stage;
  REQUIRE(stage.copy.Copy(stage.run, false).ok());
  CHECK(*stage.copy.Copy(stage.run, false) == 0);
  REQUIRE(fs::AppendLine(stage.run + "/metrics.jsonl", "2").ok());
  CHECK(*stage.copy.Copy(stage.run, false) == 1);
  CHECK(stage.Copied("metrics.jsonl") == "1\n2\n");
}

TEST_CASE("a copy that failed continues with the next call") {
  Stage stage;
  REQUIRE(stage.failpoints.Arm("fs.link=2*error", 1).ok());
  CHECK_FALSE(stage.copy.Copy(stage.run, true).ok());
  CHECK(stage.Copied("result.json") == "absent");  // it is the last file
  REQUIRE(stage.copy.Copy(stage.run, true).ok());
  CHECK(stage.Copied("result.json") == "{}");
}

TEST_CASE("a run that has ended is not copied again after a restart, unless the target differs") {
  Stage stage;
  CHECK(*stage.copy.Copy(stage.run, true) == 3);
  RunCopy restarted(stage.target, stage.files.get());
  CHECK(*restarted.Copy(stage.run, true) == 0);
  RunCopy elsewhere(stage.temp / "other", stage.files.get());
  CHECK(*elsewhere.Copy(stage.run, true) == 3);
  // A run that was copied before its end is copied again.
  RunCopy living(stage.target, stage.files.get());
  CHECK(*living.Copy(stage.run, false) == 3);
}

TEST_CASE("a folder that does not exist is an error that names it") {
  Stage stage;
  const auto copied = stage.copy.Copy(stage.temp / "runs/none", false);
  CHECK(copied.status().code() == absl::StatusCode::kUnavailable);
  CHECK(copied.status().message().find("runs/none") != std::string::npos);
}

}  // namespace
}  // namespace evergrad::coordinator

// Tests psctl checkpoint without a coordinator, on whole files, on damaged files, and on files that
// are not checkpoints.
#include "tests/unit/coordinator/psctl/checkpoint_fixture.h"

namespace evergrad::psctl {
namespace {

TEST_CASE("a whole checkpoint is described and verified by folder, manifest, shard file and URI") {
  Stage stage;
  stage.Write();
  const std::string folder = stage.folder / "job";
  for (const std::string& path : {folder, folder + "/", std::string("."), "file://" + folder,
                                  stage.Manifest(12), stage.Manifest(11)}) {
    INFO(path);
    CHECK(stage.Run({"verify", path}) == kSucceeded);
    CHECK(stage.out.str().find("whole: every byte of 2 shard(s)") != std::string::npos);
    CHECK(stage.err.str().empty());
    CHECK(stage.Run({"describe", path}) == kSucceeded);
    CHECK(stage.out.str().find("fashion-cnn") != std::string::npos);
    CHECK(stage.out.str().find("dense/kernel") != std::string::npos);
    CHECK(stage.out.str().find("complete   yes") != std::string::npos);
  }
  CHECK(stage.Run({"verify", stage.Shard(1)}) == kSucceeded);
  const nlohmann::json json = stage.Json({"verify", folder}, kSucceeded);
  CHECK(json["whole"] == true);
  CHECK(json["manifest"]["number"] == 12);
  CHECK(json["manifest"]["job_uid"] == "0123456789abcdef");
  CHECK(json["manifest"]["metrics"][0]["value"] == 0.875);
  REQUIRE(json["files"].size() == 2);
  CHECK(json["files"][0]["state"] == "whole");
  CHECK(json["files"][0]["done"] == "0-2,5");
  CHECK(json["files"][0]["open"].dump() == R"([{"closure":3,"updates":"0-1,3"}])");
  CHECK(json["files"][1]["lsn"] == 121);
  CHECK(json["files"][1]["sha256"].get<std::string>().size() == 64);
  CHECK(json["files"][1]["digest"].get<std::string>().size() == 16);
  CHECK_FALSE(stage.Json({"describe", folder}, kSucceeded)["files"][0].contains("digest"));
}

TEST_CASE("a damaged shard file is named with file and offset, and ends with code 1") {
  Stage stage;
  stage.Write();
  Stage::Flip(stage.Shard(1), 400);
  for (const std::string& path : {stage.folder / "job", stage.Manifest(12), stage.Shard(1)}) {
    INFO(path);
    CHECK(stage.Run({"verify", path}) == kFailed);
    CHECK(stage.err.str().find("offset=") != std::string::npos);
    CHECK(stage.err.str().find(fs::NameOf(stage.Shard(1))) != std::string::npos);
    CHECK(stage.out.str().find("DAMAGED") != std::string::npos);
    const nlohmann::json json = stage.Json({"verify", path}, kFailed);
    CHECK(json["whole"] == false);
    CHECK(json["files"].back()["state"] == "damaged");
    CHECK(json["files"].back()["error"].get<std::string>().find("offset=") != std::string::npos);
  }
  CHECK(stage.Run({"verify", stage.Shard(0)}) == kSucceeded);
  // Now the file is missing.
  std::filesystem::remove(stage.Shard(0));
  CHECK(stage.Run({"describe", stage.folder / "job"}) == kFailed);
  CHECK(stage.err.str().find("no such file") != std::string::npos);
}

TEST_CASE("a job's runs folder is accepted in place of its checkpoint") {
  Stage stage;
  stage.Write();
  std::filesystem::create_directories(stage.folder / "runs/job");
  std::filesystem::rename(stage.folder / "job", stage.folder / "runs/job/checkpoint");
  CHECK(stage.Run({"verify", stage.folder / "runs/job"}) == kSucceeded);
  CHECK(stage.Run({"verify", stage.folder / "runs"}) == kUsage);
}

TEST_CASE(
    "a damaged newest manifest is skipped and reported, and a folder without another one is "
    "damage") {
  Stage stage;
  stage.Write();
  Stage::Flip(stage.Manifest(12), 200);
  CHECK(stage.Run({"verify", stage.folder / "job"}) == kFailed);
  CHECK(stage.err.str().find("skipped a newer checkpoint") != std::string::npos);
  CHECK(stage.err.str().find(snapshot::ManifestName(12)) != std::string::npos);
  const nlohmann::json json = stage.Json({"describe", stage.folder / "job"}, kFailed);
  CHECK(json["manifest"]["number"] == 11);
  CHECK(json["passed_over"].size() == 1);
  CHECK(stage.Run({"verify", stage.Manifest(12)}) == kFailed);
  CHECK(stage.Run({"verify", stage.Manifest(11)}) == kSucceeded);
  std::filesystem::resize_file(stage.Manifest(11), 20);
  CHECK(stage.Run({"verify", stage.folder / "job"}) == kFailed);
  CHECK(stage.err.str().find(snapshot::ManifestName(11)) != std::string::npos);
}

TEST_CASE(
    "a path that is no checkpoint is the user's error, and the message states the expectation") {
  Stage stage;
  stage.Write();
  std::ofstream(stage.folder / "notes.txt") << "x";
  std::filesystem::create_directory(stage.folder / "empty");
  const struct {
    std::string path;
    const char* words;
  } cases[] = {{stage.folder / "notes.txt", "neither a checkpoint's folder"},
               {stage.folder / "empty", "no readable manifest"},
               {stage.folder / "none", "no such"},
               {"hdfs://host/x", "hdfs"},
               {stage.Shard(7), "no such"},
               {stage.Manifest(7), "no such"}};
  for (const auto& c : cases) {
    INFO(c.path);
    CHECK(stage.Run({"verify", c.path}) == kUsage);
    CHECK(stage.err.str().find(c.words) != std::string::npos);
  }
  CHECK(stage.Run({"verify"}) == kUsage);
  CHECK(stage.Run({"describe", "--help"}) == kSucceeded);
  CHECK(stage.out.str().find("PATH") != std::string::npos);
  CHECK(stage.Run({"--help"}) == kSucceeded);
  CHECK(stage.out.str().find("checkpoint verify") != std::string::npos);
}

}  // namespace
}  // namespace evergrad::psctl

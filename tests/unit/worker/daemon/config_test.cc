// Tests the settings of the worker that depend on the machine, and settings that are refused.
#include "worker/config.h"

#include <catch2/catch.hpp>

#include "common/base/status.h"
#include "tests/support/temp_folder.h"

namespace evergrad::worker {
namespace {

TEST_CASE("an unnamed worker uses the ordinal of its host's name, if there is one") {
  Config config;
  REQUIRE(Resolve("pool-12", 8, &config).ok());
  CHECK(config.name == "12");
  Config numbered;
  REQUIRE(Resolve("desk", 8, &numbered).ok());
  CHECK(numbered.name.empty());  // the coordinator gives it a number as its name
}

TEST_CASE("the default number of threads is half of the cores") {
  for (const auto& [cores, given, want] : {std::tuple{8u, 0u, 4u}, std::tuple{1u, 0u, 1u},
                                           std::tuple{0u, 0u, 1u}, std::tuple{8u, 6u, 6u}}) {
    Config config;
    config.threads = given;
    REQUIRE(Resolve("", cores, &config).ok());
    CHECK(config.threads == want);
  }
}

TEST_CASE("a name that is no valid identity is refused") {
  for (const std::string& name :
       {std::string("a b"), std::string("a/b"), std::string(64, 'a'), std::string("\xff")}) {
    Config config;
    config.name = name;
    const absl::Status status = Resolve("", 2, &config);
    REQUIRE_FALSE(status.ok());
    CHECK(BlameOf(status) == Blame::kUser);
  }
}

TEST_CASE("memory shared with a server is a whole number of units, or zero") {
  for (const auto& [bytes, good] :
       {std::pair{0u, true}, std::pair{64u << 10, true}, std::pair{2u << 20, true},
        std::pair{1000u, false}, std::pair{(2u << 20) + 1, false}}) {
    Config config;
    config.lane_bytes = bytes;
    const absl::Status status = Resolve("", 2, &config);
    CHECK(status.ok() == good);
    if (!good) CHECK(status.message().find("--lane-bytes is not a multiple of 64KiB") == 0);
  }
}

TEST_CASE(
    "without --data-root all files are readable if only this machine is involved, and otherwise "
    "none") {
  Config config;
  CHECK(RootsOf(config, true).everything());
  const fs::Roots none = RootsOf(config, false);
  CHECK_FALSE(none.Names("/data/x"));
  CHECK_THAT(std::string(none.Refusal("the data file", "/data/x").message()),
             Catch::Contains("start the worker with --data-root FOLDER"));

  test::TempFolder folder;
  config.data_roots = {folder / ""};
  for (const bool local : {true, false}) {
    const fs::Roots roots = RootsOf(config, local);
    CHECK(roots.Names(folder / "x"));
    CHECK_FALSE(roots.Names("/data/x"));
    CHECK_THAT(std::string(roots.Refusal("the data file", "/data/x").message()),
               Catch::Contains("one more --data-root FOLDER"));
  }
  config.data_roots = {folder / "absent"};
  CHECK_THAT(std::string(Resolve("", 2, &config).message()),
             Catch::Contains("--data-root: no such folder"));
  Config given;
  daemon::OptionTable table("evergrad-worker", "test");
  AddOptions(&table, &given);
  const char* flags[] = {"evergrad-worker", "--data-root", "/a", "--data-root", "/b,c"};
  REQUIRE(table.Parse(5, flags).ok());
  CHECK(given.data_roots == std::vector<std::string>{"/a", "/b,c"});
  CHECK_THAT(table.Help(),
             Catch::Contains("--data-root") &&
                 Catch::Contains(
                     "may read every file that this process can read if worker and coordinator "
                     "listen on loopback only"));
}

TEST_CASE("settings are flags and keys of one table, and invalid ones are refused") {
  Config config;
  daemon::OptionTable table("evergrad-worker", "test");
  AddOptions(&table, &config);
  const char* good[] = {"evergrad-worker",
                        "--name",
                        "7",
                        "--threads",
                        "3",
                        "--prefetch-batches-max",
                        "2",
                        "--prefetch-bytes-max",
                        "1MiB",
                        "--call-deadline",
                        "250ms",
                        "--not-finite",
                        "skip"};
  REQUIRE(table.Parse(13, good).ok());
  CHECK(config.name == "7");
  CHECK(config.threads == 3);
  CHECK(config.prefetch_batches_max == 2);
  CHECK(config.prefetch_bytes_max == 1 << 20);
  CHECK(config.call_deadline == std::chrono::milliseconds(250));
  CHECK(config.not_finite == "skip");
  for (const auto& [flag, value] :
       {std::pair{"--prefetch-batches-max", "0"}, std::pair{"--not-finite", "ignore"},
        std::pair{"--threads", "-1"}, std::pair{"--lane-bytes", "65MiB"}}) {
    Config other;
    daemon::OptionTable fresh("evergrad-worker", "test");
    AddOptions(&fresh, &other);
    const char* bad[] = {"evergrad-worker", flag, value};
    CHECK_FALSE(fresh.Parse(3, bad).ok());
  }
}

TEST_CASE(
    "an unusable device is refused by name with the reason, and auto reports why it selects the "
    "CPU") {
  Config config;
  config.cuda_library = "/nowhere/libevergrad_cuda.so";
  REQUIRE(Resolve("", 2, &config).ok());
  CHECK(config.device == "cpu");
  CHECK(config.device_text == "cpu: /nowhere/libevergrad_cuda.so does not exist");
  config.device = "gpu:3";
  const absl::Status refused = Resolve("", 2, &config);
  CHECK(refused.message() ==
        "device gpu:3 is not usable: /nowhere/libevergrad_cuda.so does not exist");
  CHECK(BlameOf(refused) == Blame::kUser);
  config.device = "tpu";
  CHECK(Resolve("", 2, &config).message() ==
        "unknown device: want=auto, cpu, gpu or gpu:N got=tpu");
  config.device = "cpu";
  REQUIRE(Resolve("", 2, &config).ok());
  CHECK(config.device_text == "cpu: as requested");
}

}  // namespace
}  // namespace evergrad::worker

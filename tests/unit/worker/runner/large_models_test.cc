// Tests models that are larger than the largest request that a server accepts.
#include <catch2/catch.hpp>

#include "absl/strings/str_replace.h"
#include "runner_fixture.h"

namespace evergrad::worker {
namespace {

// The variables have 16 x 40,000, 40,000, 40,000 x 3 and 3 values, which are 3.2 MB together.
std::string LargeYaml(const Stage& stage, int pipeline = 0) {
  return absl::StrReplaceAll(TrainingYaml(stage.folder, 0.5, pipeline),
                             {{"units: 8, activation: tanh", "units: 40000, activation: tanh"}});
}
void WriteData(const Stage& stage) {
  WriteIdx(stage.folder, "train", 90);
  WriteIdx(stage.folder, "eval", 30);
}

struct Outcome {
  std::uint64_t digest = 0, calls = 0;
};
Outcome Train(std::uint64_t budget_bytes_max, std::uint64_t shards, int pipeline) {
  Stage::Settings settings;
  settings.budget_bytes_max = budget_bytes_max;
  Stage stage(settings);
  WriteData(stage);
  stage.ShareRunsFolder();
  stage.Begin(LargeYaml(stage, pipeline), shards, SmallPlan());
  std::uint64_t steps = 0;
  for (std::uint64_t c = 0; c < 3; ++c) steps += stage.RunClosure(c).metrics().steps();
  stage.RunClosure(1ull << 32, v1::EVALUATE);
  const v1::Done exported = stage.RunClosure(2ull << 32, v1::EXPORT);
  CHECK(exported.export_().files_size() == 2);
  for (const v1::ShardState& state : stage.States()) {
    INFO(state.variable());
    CHECK(state.updates_applied() == steps);
    CHECK(state.duplicates_refused() == 0);
  }
  for (const auto& node : stage.nodes) CHECK(node->stats().budget_refused == 0);
  CHECK(stage.client.stats().failures == 0);
  CHECK(stage.HoldsNothing());
  return {stage.Digest(), stage.client.stats().calls};
}

TEST_CASE(
    "a model that is larger than a server's budget trains, evaluates and is exported in several "
    "requests, with the values of one that fits") {
  const int pipeline = GENERATE(0, 1);
  CAPTURE(pipeline);
  // In this case the worker knows no limit, so it sends one request to each server.
  const Outcome whole = Train(0, 16, pipeline);
  const Outcome fits = Train(256u << 20, 16, pipeline);
  const Outcome parts = Train(1u << 20, 16, pipeline);
  // In this case the push of a shard and its pull do not fit into one request.
  const Outcome apart = Train(1u << 20, 4, pipeline);
  if (pipeline == 0) {
    CHECK(whole.calls == fits.calls);
    CHECK(whole.digest == fits.digest);
    CHECK(whole.digest == parts.digest);
    CHECK(whole.digest == apart.digest);
  }
  CHECK(parts.calls > 4 * fits.calls);
}

TEST_CASE(
    "a shard that no request can carry is a user's error at once, with variable, server and flag") {
  Stage::Settings settings;
  settings.budget_bytes_max = 1u << 20;
  Stage stage(settings);
  WriteData(stage);
  stage.Begin(LargeYaml(stage), 1, SmallPlan());
  stage.Grant(0);
  const v1::Failed failed = stage.Next(v1::TaskMessage::kFailed).failed();
  CHECK(failed.user_error());
  CHECK(failed.cause().origin_text() == "ps_server/0");
  CHECK_THAT(
      failed.cause().message(),
      Catch::StartsWith(
          "rows 0 to 16 of variable hidden/kernel do not fit into one request to ps_server/0: ") &&
          Catch::Contains("--budget-bytes-max 1048576") &&
          Catch::Contains("spec.strategy.partitioner"));
  CHECK(stage.client.stats().calls <= 1);  // only the pull from the other server
  CHECK(stage.HoldsNothing());
}

}  // namespace
}  // namespace evergrad::worker

#include "coordinator/jobs/epoch_account.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace evergrad::coordinator {
namespace {

using Steps = std::vector<std::uint64_t>;

// Returns a manifest whose plan has 16 steps per epoch (64 examples in batches of 4).
v1::Manifest Manifest() {
  v1::Manifest manifest;
  v1::Plan& plan = *manifest.mutable_plan();
  plan.set_train_examples(64);
  plan.set_batch_size(4);
  plan.set_steps_per_closure(2);
  plan.set_epochs(2);
  plan.set_eval_batch_size(4);
  plan.set_eval_steps_per_closure(2);
  return manifest;
}

void Say(v1::Manifest* manifest, std::uint64_t epoch, double steps, const char* scope = "train") {
  v1::FinishedMetric& metric = *manifest->add_metrics();
  metric.set_scope(scope);
  metric.set_epoch(epoch);
  metric.set_name(kStepsMetric);
  metric.set_value(steps);
}

TEST_CASE("each resumed epoch has its own number of steps from the manifest") {
  v1::Manifest manifest = Manifest();
  Say(&manifest, 1, 32);
  Say(&manifest, 2, 16);
  CHECK(StepsOfEpochs(manifest, false, {8, 8}) == Steps{32, 16});
  CHECK(StepsOfEpochs(manifest, true, {16, 16}) == Steps{32, 16});
}

TEST_CASE(
    "a manifest of an older build gives the steps of its plan, or under the same plan the counted "
    "steps") {
  CHECK(StepsOfEpochs(Manifest(), false, {8, 8}) == Steps{16, 16});
  CHECK(StepsOfEpochs(Manifest(), true, {16, 14}) == Steps{16, 14});
}

TEST_CASE("an invalid number of steps and one of an unknown epoch are ignored") {
  v1::Manifest manifest = Manifest();
  for (const double odd : {0.0, -3.0, 2.5, 1e300, std::nan("")}) Say(&manifest, 1, odd);
  Say(&manifest, 0, 7);
  Say(&manifest, 3, 7);
  Say(&manifest, 1, 7, "eval");
  CHECK(StepsOfEpochs(manifest, false, {8, 8}) == Steps{16, 16});
}

}  // namespace
}  // namespace evergrad::coordinator

// Tests the rules of each type of job.
#include "coordinator/jobs/job_kind.h"

#include <catch2/catch.hpp>

#include "common/base/ids.h"
#include "common/plan/counting_rows.h"

namespace evergrad::coordinator {
namespace {

config::JobSpec Spec(const std::string& type) {
  config::JobSpec spec;
  spec.type = type;
  spec.data.batch_size = 4;
  spec.training.epochs = 3;
  spec.training.steps_per_closure = 2;
  spec.strategy.partitioner.type = "fixed_shards";
  spec.strategy.partitioner.num_shards = 5;
  spec.counting.shards = 7;
  return spec;
}

TEST_CASE("only counting jobs count in evaluations, and only training jobs export a model") {
  for (const std::string type : {"training", "counting", "functions"}) {
    const JobKind& kind = JobKind::Of(Spec(type));
    CHECK(kind.counts_only() == (type == "counting"));
    CHECK(kind.exports_model() == (type == "training"));
  }
}

TEST_CASE("the partitioner is the strategy's, and for counting jobs the number of shards") {
  for (const std::string type : {"training", "counting", "functions"}) {
    const auto partitioner = JobKind::Of(Spec(type)).PartitionerOf(Spec(type));
    REQUIRE(std::holds_alternative<sharding::FixedShards>(partitioner));
    CHECK(std::get<sharding::FixedShards>(partitioner).num_shards == (type == "counting" ? 7 : 5));
  }
}

TEST_CASE(
    "the numbers of the plan are those of the description, or a closure for each possible "
    "schedule()") {
  v1::DescribeResult described;
  described.set_train_examples(100);
  described.set_eval_examples(10);
  const plan::PlanSpec training =
      JobKind::Of(Spec("training")).PlanNumbers(Spec("training"), described);
  CHECK(training.train_examples == 100);
  CHECK(training.eval_examples == 10);
  CHECK(training.epochs == 3);
  CHECK(training.steps_per_closure == 2);
  const plan::PlanSpec functions =
      JobKind::Of(Spec("functions")).PlanNumbers(Spec("functions"), described);
  CHECK(plan::Plan::Create(functions)->closures() == kClosuresMax);
  CHECK(functions.steps_per_closure == kUpdatesPerClosureMax);
  CHECK(functions.eval_examples == 0);
}

TEST_CASE("only a functions job is described by its YAML") {
  CHECK_FALSE(JobKind::Of(Spec("training")).Describe(Spec("training")));
  CHECK_FALSE(JobKind::Of(Spec("counting")).Describe(Spec("counting")));
  config::JobSpec spec = Spec("functions");
  config::FunctionVariable weights;
  weights.name = "weights";
  weights.shape = {8, 2};
  spec.functions.variables = {weights};
  const auto described = JobKind::Of(spec).Describe(spec);
  REQUIRE(described);
  CHECK(described->parameters() == 16);
  REQUIRE(described->variables_size() == 1);
  CHECK(described->variables(0).name() == "weights");
}

TEST_CASE("a plan says how many updates touch a dense shard, but not a slot or counted samples") {
  v1::ShardSpec dense, slot, samples;
  dense.mutable_variable()->set_name("dense/kernel");
  slot.mutable_slot()->set_slots(2);
  samples.mutable_variable()->set_name(plan::kCountingSamples);
  CHECK(JobKind::Of(Spec("training")).IsTouchedByAll(dense));
  CHECK_FALSE(JobKind::Of(Spec("training")).IsTouchedByAll(slot));
  CHECK(JobKind::Of(Spec("training")).IsTouchedByAll(samples));
  CHECK(JobKind::Of(Spec("counting")).IsTouchedByAll(dense));
  CHECK_FALSE(JobKind::Of(Spec("counting")).IsTouchedByAll(samples));
}

}  // namespace
}  // namespace evergrad::coordinator

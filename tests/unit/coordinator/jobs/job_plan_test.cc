// Tests the plan of a job, without a Job object: how the plan is made from the description, the
// limit of its size, and how it survives a restart.
#include "coordinator/jobs/job_plan.h"

#include <catch2/catch.hpp>

#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;

// The job has one variable of 16 rows of 16 bytes, and 64 examples in batches of 4.
struct Fixture {
  Fixture() {
    id.spec.name = "part";
    id.spec.data.batch_size = 4;
    id.spec.optimizer.type = "sgd";
    described.set_train_examples(64);
    described.add_warnings("no shuffle");
    v1::VariableSpec* variable = described.add_variables();
    variable->set_name("w");
    variable->add_shape(16);
    variable->add_shape(4);
    variable->set_dtype(v1::DTYPE_FLOAT32);
    variable->mutable_optimizer()->set_type("sgd");
    variable->mutable_optimizer()->set_learning_rate(0.1);
  }
  v1::JobSnapshot Saved(bool begun = true) const {
    v1::JobSnapshot snapshot;
    plan.Fill(begun, &snapshot);
    return snapshot;
  }

  JobIdentity id;
  JobOptions options;
  v1::DescribeResult described;
  ShardTable shards;
  EpochAccount epochs{{}, MonoTime{0}};
  JobPlan plan{&id, &options, &shards, &epochs};
  std::string refusal;
};

TEST_CASE("a plan that is built is known to the shards and to the account of the epochs") {
  Fixture f;
  CHECK_FALSE(f.plan);
  REQUIRE(f.plan.Build(f.described, {}).ok());
  REQUIRE(f.plan);
  f.epochs.BeginPlan();
  CHECK(f.epochs.BarrierClosure() == f.plan->closures());
  CHECK(f.shards.size() == static_cast<std::uint32_t>(f.plan.message().shards_size()));
  CHECK(f.plan.server_bytes() == 256);
  CHECK(f.plan.described().warnings().empty());
}

TEST_CASE("a description without a plan is an error, and changes nothing") {
  Fixture f;
  f.described.set_train_examples(0);
  CHECK_FALSE(f.plan.Build(f.described, {}).ok());
  CHECK_FALSE(f.plan);
}

TEST_CASE("the smaller limit of the servers' memory counts, and its error names the setting") {
  Fixture f;
  REQUIRE(f.plan.Build(f.described, {}).ok());
  CHECK(f.plan.ServerBytesMax() == 0);
  CHECK(f.plan.CheckServerBytes().ok());
  f.options.server_memory_bytes_max = 256;
  CHECK(f.plan.CheckServerBytes().ok());
  f.options.server_memory_bytes_max = 255;
  CHECK(absl::IsResourceExhausted(f.plan.CheckServerBytes()));
  CHECK_THAT(std::string(f.plan.CheckServerBytes().message()),
             Contains("bytes=256 coordinator's --job-server-memory-bytes-max=255 shards="));
  f.id.spec.resources.server_memory_bytes_max = 100;
  CHECK_THAT(std::string(f.plan.CheckServerBytes().message()),
             Contains("spec.resources.server_memory_bytes_max=100"));
}

TEST_CASE(
    "after a restart the same plan is built of the description, with the limit of its parts") {
  Fixture f, next;
  REQUIRE(f.plan.Build(f.described, {.bytes = 64}).ok());
  const v1::JobSnapshot snapshot = f.Saved();
  REQUIRE(next.plan.Read(snapshot, /*ended=*/false, &next.refusal).ok());
  CHECK(next.plan.message().SerializeAsString() == f.plan.message().SerializeAsString());
  CHECK(next.shards.size() == 4);
  CHECK(next.refusal.empty());
}

TEST_CASE("a plan that is not in use yet is not restored, but its description is") {
  Fixture f, next;
  REQUIRE(f.plan.Build(f.described, {}).ok());
  REQUIRE(next.plan.Read(f.Saved(/*begun=*/false), /*ended=*/false, &next.refusal).ok());
  CHECK_FALSE(next.plan);
  CHECK(next.plan.described().variables_size() == 1);
}

TEST_CASE("a living job whose plan would be another one is refused, an ended one is shown") {
  Fixture f, next;
  REQUIRE(f.plan.Build(f.described, {}).ok());
  v1::JobSnapshot snapshot = f.Saved();
  snapshot.set_plan_fingerprint("former");
  const absl::Status refused = next.plan.Read(snapshot, /*ended=*/false, &next.refusal);
  CHECK(absl::IsInvalidArgument(refused));
  CHECK_THAT(std::string(refused.message()), Contains("want=former"));
  REQUIRE(next.plan.Read(snapshot, /*ended=*/true, &next.refusal).ok());
  CHECK(next.plan.message().fingerprint() == "former");
}

TEST_CASE("a plan that this version cannot build is refused, and an ended job says why") {
  Fixture f, next;
  REQUIRE(f.plan.Build(f.described, {}).ok());
  v1::JobSnapshot snapshot = f.Saved();
  snapshot.mutable_described()->set_train_examples(0);
  CHECK(absl::IsInvalidArgument(next.plan.Read(snapshot, /*ended=*/false, &next.refusal)));
  next.refusal.clear();
  REQUIRE(next.plan.Read(snapshot, /*ended=*/true, &next.refusal).ok());
  CHECK_THAT(next.refusal, Contains("this version cannot build the job's plan: "));
  CHECK_FALSE(next.plan);
}

}  // namespace
}  // namespace evergrad::coordinator

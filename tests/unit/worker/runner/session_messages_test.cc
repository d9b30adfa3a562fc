#include "worker/runner/session_messages.h"

#include <catch2/catch.hpp>

namespace evergrad::worker {
namespace {

TEST_CASE("a grant becomes work, and the messages about that work name it as the grant did") {
  v1::Grant grant;
  grant.set_job_uid(7);
  grant.set_closure(5);
  grant.mutable_attempt()->set_term(2);
  grant.mutable_attempt()->set_n(9);
  grant.set_kind(v1::TRAIN);
  grant.add_targets(3);
  grant.add_targets(1);
  grant.set_first(true);
  grant.set_proof("proof");
  grant.set_function("f");
  grant.set_arguments("x");
  const Work work = WorkOf(grant, "4");
  CHECK(work.first);
  CHECK(work.proof == "proof");
  CHECK(work.granted_to == "4");
  REQUIRE(work.function != nullptr);
  CHECK(work.function->function == "f");
  CHECK(work.function->arguments == "x");

  v1::HeldAttempt held;
  FillWork(work, &held);
  CHECK(held.job_uid() == 7);
  CHECK(held.kind() == v1::TRAIN);
  CHECK_FALSE(held.all_targets());
  REQUIRE(held.targets_size() == 2);
  CHECK(held.targets(0) == 1);
  const Work again = WorkOf(held);
  CHECK(again.closure == ClosureId(5));
  CHECK(again.attempt == Attempt{2, 9});
  CHECK(again.targets == work.targets);
  CHECK(again.function == nullptr);
}

TEST_CASE("every kind of work has a kind on the wire, a state and a name; others are unknown") {
  for (const WorkKind kind :
       {WorkKind::kTrain, WorkKind::kEvaluate, WorkKind::kDescribe, WorkKind::kExport}) {
    CHECK(KindOf(ToProto(kind)) == kind);
    CHECK(std::string(StateName(kind)) != "");
  }
  CHECK(KindOf(v1::WORK_KIND_UNSPECIFIED) == std::nullopt);
  CHECK(KindOf(static_cast<v1::WorkKind>(99)) == std::nullopt);
  Work work;
  work.closure = ClosureId((std::uint64_t{3} << 32) + 8);
  work.kind = WorkKind::kEvaluate;
  CHECK(ClosureName(work) == "eval 3/8");
  work.closure = ClosureId(8);
  work.kind = WorkKind::kTrain;
  CHECK(ClosureName(work) == "8");
}

TEST_CASE("a shard map names each server's endpoint once, and shards without an owner") {
  v1::ShardMap proto;
  proto.set_job_uid(7);
  proto.mutable_version()->set_term(1);
  proto.mutable_version()->set_n(4);
  for (const std::uint32_t shard : {0u, 1u, 2u}) {
    v1::ShardLocation& location = *proto.add_shards();
    location.set_shard(shard);
    location.mutable_epoch()->set_n(shard + 1);
    if (shard == 1) continue;
    location.set_server_identity("5");
    location.mutable_endpoint()->set_address("here:1");
  }
  const absl::StatusOr<PlacedShards> placed = PlacedShardsOf(proto);
  REQUIRE(placed.ok());
  CHECK(placed->map.job == JobUid(7));
  CHECK(placed->map.version == MapVersion{1, 4});
  REQUIRE(placed->map.shards.size() == 3);
  CHECK(placed->map.shards[1].server == "");
  CHECK(placed->map.shards[2].epoch == ShardEpoch{0, 3});
  REQUIRE(placed->endpoints.size() == 1);
  CHECK(placed->endpoints.at("5").address() == "here:1");
  CHECK(placed->endpoints.at("5").server() == "5");

  proto.mutable_shards(2)->set_shard(3);
  CHECK(PlacedShardsOf(proto).status().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace evergrad::worker

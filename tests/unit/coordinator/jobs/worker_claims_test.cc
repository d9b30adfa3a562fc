// Tests the claims of workers that a job checks, such as the shards that an update touched. There
// is no Job object.
#include "coordinator/jobs/worker_claims.h"

#include <catch2/catch.hpp>

#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;
using Verdict = UpdateAccount::Verdict;

// There are sixteen closures of one update each. Only some of the updates touch shard 1.
struct Fixture : PartFixture {
  Fixture() {
    id.grant_key = std::string(32, 'k');
    Place();
  }
  // Lets every closure succeed. The closures below `less` report that they did not touch shard 1.
  void CountAll(std::uint64_t less = 0) {
    while (const auto granted = book->NextGrant(TaskId(7))) {
      book->OnDone(granted->closure, granted->attempt, book->durable().version,
                   book->durable().version);
      v1::TouchedLess touched;
      if (granted->closure.value() < less) {
        touched.add_shards(1);
        touched.add_updates(0);
      }
      claims.Count(granted->closure, &touched);
    }
  }
  Verdict Compare(std::uint64_t dense, std::uint64_t other) {
    std::vector<v1::ShardState> states(2);
    states[0].set_updates_applied(dense);
    states[1].set_shard(1);
    states[1].set_updates_applied(other);
    finding = claims.Compare(states, [](const v1::ShardSpec& spec) { return spec.shard() == 0; });
    return finding.verdict;
  }

  EpochAccount epochs{{}, MonoTime{0}};
  WorkerClaims claims{Part(), &epochs};
  UpdateAccount::Finding finding;
};

TEST_CASE("a proof is of one closure, one attempt and one worker; a job without a key has none") {
  Fixture f;
  v1::HeldAttempt held;
  held.set_closure(3);
  held.set_granted_to("0");
  held.set_proof(f.claims.ProofOf("0", ClosureId(3), {1, 5}));
  CHECK(f.claims.IsProved(held, {1, 5}));
  CHECK_FALSE(f.claims.IsProved(held, {1, 6}));
  held.set_granted_to("1");
  CHECK_FALSE(f.claims.IsProved(held, {1, 5}));
  f.id.grant_key.clear();
  CHECK(f.claims.ProofOf("0", ClosureId(3), {1, 5}).empty());
  CHECK(f.claims.IsProved(held, {1, 6}));
}

TEST_CASE("a later attempt that nobody granted is borne seven times in a row of one closure") {
  Fixture f;
  for (int i = 0; i < 7; ++i) CHECK(f.claims.OnSuperseded(ClosureId(1), ShardId(0), "0"));
  f.claims.OnEnded(ClosureId(1));
  for (int i = 0; i < 7; ++i) CHECK(f.claims.OnSuperseded(ClosureId(1), ShardId(0), "0"));
  CHECK(f.claims.OnSuperseded(ClosureId(2), ShardId(0), "0"));
  CHECK(f.said.empty());
  CHECK_FALSE(f.claims.OnSuperseded(ClosureId(1), ShardId(0), "0"));
  CHECK(f.Said("fail machine: a shard reports an attempt that the coordinator never granted"));
}

TEST_CASE("a malformed report of touched shards is refused") {
  Fixture f;
  v1::Done done;
  done.set_closure(1);
  CHECK(f.claims.Check(done).ok());
  done.mutable_touched()->add_shards(1);
  CHECK(f.claims.Check(done).code() == absl::StatusCode::kInvalidArgument);
  // A claim must be lower than the closure's number of updates.
  done.mutable_touched()->add_updates(1);
  CHECK(f.claims.Check(done).code() == absl::StatusCode::kInvalidArgument);
  done.mutable_touched()->set_updates(0, 0);
  CHECK(f.claims.Check(done).ok());
}

TEST_CASE("the shards must hold the updates of the plan, and those that the workers reported") {
  Fixture f;
  f.CountAll(/*less=*/4);
  CHECK(f.Compare(16, 12) == Verdict::kExact);
  CHECK(f.claims.Accept(f.finding));
  CHECK(f.claims.updates_exact());
  CHECK(f.Compare(16, 16) == Verdict::kDifferent);
  CHECK_FALSE(f.claims.Accept(f.finding));
  CHECK_FALSE(f.claims.updates_exact());
  CHECK(f.Said("a worker reported work that it did not do"));
}

TEST_CASE("the count outlives a restart; without one in the snapshot slots are not compared") {
  Fixture f;
  f.CountAll(/*less=*/4);
  v1::JobSnapshot snapshot;
  f.claims.Fill(&snapshot);
  Fixture next;
  next.CountAll();
  next.claims.Read(snapshot);
  CHECK(next.Compare(16, 12) == Verdict::kExact);
  snapshot.clear_updates();
  snapshot.set_has_plan(true);
  next.claims.Read(snapshot);
  CHECK(next.Compare(16, 3) != Verdict::kDifferent);
}

}  // namespace
}  // namespace evergrad::coordinator

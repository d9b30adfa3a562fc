// Tests how training closures are granted and answered, without a Job object.
#include "coordinator/jobs/training_work.h"

#include <catch2/catch.hpp>

#include "work_fixture.h"

namespace evergrad::coordinator {
namespace {

struct Fixture : WorkFixture {
  v1::Done DoneOf(const v1::Grant& grant) const {
    v1::Done done;
    done.set_closure(grant.closure());
    *done.mutable_attempt() = grant.attempt();
    done.set_kind(v1::TRAIN);
    *done.mutable_v0() = *done.mutable_v1() = client::ToProto(book->durable().version);
    done.mutable_metrics()->set_examples(4);
    done.mutable_metrics()->set_steps(1);
    return done;
  }
  void ReportFailure(const v1::Grant& grant, std::uint64_t task, bool user, bool elsewhere) {
    v1::Failed failed;
    failed.set_closure(grant.closure());
    *failed.mutable_attempt() = grant.attempt();
    failed.set_user_error(user);
    v1::ErrorDetail cause;
    cause.set_message("why");
    training.OnFailed(worker(task), failed, elsewhere, cause);
  }
  v1::AttemptDropped DroppedOf(const v1::Grant& grant) const {
    v1::AttemptDropped dropped;
    dropped.set_closure(grant.closure());
    *dropped.mutable_attempt() = grant.attempt();
    return dropped;
  }
  // Ends the turn, in which one Done was accepted. Returns whether the answer says that the attempt
  // is superseded.
  bool Superseded(std::uint64_t task) {
    turn.End();
    for (const v1::CoordinatorMessage& message : Take(TaskId(task))) {
      if (message.has_done_answer()) return message.done_answer().superseded();
    }
    FAIL("no answer");
    return false;
  }
};

TEST_CASE("a grant is sent with its proof, and the worker holds the attempt") {
  Fixture f;
  f.id.grant_key = std::string(32, 'k');
  const v1::Grant grant = f.Hold();
  CHECK(grant.kind() == v1::TRAIN);
  CHECK(grant.all_targets());
  CHECK(grant.proof() == f.claims.ProofOf("7", ClosureId(grant.closure()),
                                          client::FromProto<Attempt>(grant.attempt())));
  CHECK(f.worker(7).held.count(client::FromProto<Attempt>(grant.attempt())) == 1);
  CHECK(f.totals.Counts(0).attempts == f.worker(7).held.size());
}

TEST_CASE("a Done counts once, and the answer follows at the end of the turn") {
  Fixture f;
  const v1::Grant grant = f.Hold();
  f.training.OnDone(&f.worker(7), f.DoneOf(grant), /*window_open=*/false);
  CHECK(f.Take(TaskId(7)).empty());
  CHECK(f.epochs.succeeded() == 1);
  CHECK_FALSE(f.Superseded(7));
  f.training.OnDone(&f.worker(7), f.DoneOf(grant), /*window_open=*/false);
  CHECK(f.epochs.succeeded() == 1);
  CHECK(f.Superseded(7));  // the attempt of the repeated Done is no longer current
}

TEST_CASE("a Done from a worker that does not hold the attempt is refused and counted") {
  Fixture f;
  const v1::Grant grant = f.Hold();
  f.training.OnDone(&f.worker(8), f.DoneOf(grant), /*window_open=*/false);
  CHECK(f.Superseded(8));
  CHECK(f.epochs.succeeded() == 0);
  CHECK(f.host.foreign.size() == 1);
}

TEST_CASE("a Done after the end of the job is answered as superseded") {
  Fixture f;
  const v1::Done done = f.DoneOf(f.Hold());
  f.book.reset();
  f.training.OnDone(&f.worker(7), done, /*window_open=*/false);
  CHECK(f.Superseded(7));
}

TEST_CASE("a failure of a machine is retried after a wait, and too many in a row end the job") {
  Fixture f;
  f.options.retries_max = 1;
  v1::Grant grant = f.Hold();
  f.ReportFailure(grant, 7, /*user=*/false, /*elsewhere=*/false);
  CHECK(f.Said("warning: closure 0 failed on worker/7 (failures in a row: 1): why"));
  f.training.Release(f.host.Now());
  CHECK_FALSE(f.IsFree(grant));
  f.host.clock.Advance(f.options.retry_min);
  f.training.Release(f.host.Now());
  CHECK(f.IsFree(grant));
  f.worker(7).DropAll();
  grant = f.Hold();
  f.ReportFailure(grant, 7, /*user=*/false, /*elsewhere=*/false);
  CHECK(f.Said("fail machine: why"));
  CHECK(f.totals.Counts(0).failed == 1);
}

TEST_CASE("a user's error ends the job, and a worker that cannot take part does not") {
  Fixture f;
  const v1::Grant grant = f.Hold();
  const bool elsewhere = GENERATE(false, true);
  f.ReportFailure(grant, 7, /*user=*/true, elsewhere);
  CHECK(f.Said("fail user: why") == !elsewhere);
  CHECK(f.IsFree(grant) == elsewhere);
  CHECK(f.totals.Counts(0).failed == (elsewhere ? 0 : 1));
}

TEST_CASE("a failure or a return of another worker's attempt changes nothing") {
  Fixture f;
  const v1::Grant grant = f.Hold();
  f.ReportFailure(grant, 8, /*user=*/true, /*elsewhere=*/false);
  f.training.OnDropped(f.worker(8), f.DroppedOf(grant), /*asked=*/true);
  CHECK(f.said.empty());
  CHECK_FALSE(f.IsFree(grant));
  CHECK(f.host.foreign.size() == 2);
}

TEST_CASE("an attempt that is given back is granted again, at once if it was asked for") {
  Fixture f;
  const v1::Grant grant = f.Hold();
  const bool asked = GENERATE(false, true);
  f.training.OnDropped(f.worker(7), f.DroppedOf(grant), asked);
  CHECK(f.IsFree(grant) == asked);
  f.host.clock.Advance(f.options.retry_min);
  SECTION("the wait ends") {
    f.training.Release(f.host.Now());
    CHECK(f.IsFree(grant));
  }
  SECTION("the job ends before") {
    f.training.Clear();
    f.training.Release(f.host.Now());
    CHECK(f.IsFree(grant) == asked);
  }
}

TEST_CASE("the worker of a cancelled closure is told, and holds it no more") {
  Fixture f;
  const v1::Grant grant = f.Hold();
  const std::size_t held = f.worker(7).held.size();
  f.training.OnCancelled(ClosureId(grant.closure()),
                         f.book->current().at(ClosureId(grant.closure())));
  CHECK(f.worker(7).held.size() == held - 1);
  CHECK(f.Superseded(7));
}

TEST_CASE("nothing is granted while the store has trouble, or a failpoint holds grants back") {
  Fixture f;
  CHECK_FALSE(f.training.GrantsBlocked());
  f.host.trouble = "full";
  CHECK(f.training.GrantsBlocked());
  f.host.trouble.clear();
  REQUIRE(f.host.points.Arm("coordinator.before_grant=1*delay(80)", 1).ok());
  CHECK(f.training.GrantsBlocked());
  f.host.clock.Advance(std::chrono::milliseconds(79));
  CHECK(f.training.GrantsBlocked());
  f.host.clock.Advance(std::chrono::milliseconds(1));
  CHECK_FALSE(f.training.GrantsBlocked());
}

}  // namespace
}  // namespace evergrad::coordinator

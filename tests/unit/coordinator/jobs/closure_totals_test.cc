// Tests the totals of a job's closures over two lives of the coordinator, without a Job object.
#include "coordinator/jobs/closure_totals.h"

#include <catch2/catch.hpp>

#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

struct Fixture : PartFixture {
  v1::JobCounters Counters() const {
    v1::JobCounters counters;
    totals.FillCounters(&counters);
    return counters;
  }
  // Begins the next life of the coordinator, which has term 2.
  void Restart() {
    const v1::JobCounters counters = Counters();
    host.term_now = Term(2);
    totals.ReadCounters(counters);
  }
  ClosureTotals totals{Part()};
};

TEST_CASE("an attempt that a worker brings over a restart is counted once, unless it was counted") {
  Fixture f;
  f.totals.OnGranted(Attempt{1, 4});
  f.Restart();
  f.totals.OnAdopted(ClosureId(0), Attempt{1, 4});  // the attempt was counted before the restart
  CHECK(f.totals.Counts(0).attempts == 1);
  f.totals.OnAdopted(ClosureId(1), Attempt{1, 5});
  f.totals.OnAdopted(ClosureId(1), Attempt{1, 5});
  CHECK(f.totals.Counts(0).attempts == 2);
  // This attempt was granted in the present life, and was counted at the grant.
  f.totals.OnAdopted(ClosureId(2), Attempt{2, 1});
  CHECK(f.totals.Counts(0).attempts == 2);
  CHECK(f.Counters().attempt_high().n() == 5);
  CHECK(f.Counters().granted_below() == 3);
}

TEST_CASE("closures that neither succeeded nor failed are cancelled when the job ends") {
  Fixture f;
  f.book->SetNewLimit(16);
  for (int i = 0; i < 5; ++i) REQUIRE(f.book->NextGrant(TaskId(9)));
  f.totals.SetFailed(1);
  CHECK(f.totals.Counts(2).cancelled == 0);  // closures count as cancelled only when the job ends
  f.totals.Close(std::nullopt);
  CHECK(f.totals.Counts(2).cancelled == 2);
  v1::JobStatus status;
  f.totals.FillStatus(/*ended=*/false, 2, &status);
  CHECK(status.closures_failed() == 0);
  f.totals.FillStatus(/*ended=*/true, 2, &status);
  CHECK(status.closures_failed() == 1);
  CHECK(status.closures_cancelled() == 2);
}

TEST_CASE("the numbers of a source that counts its closures replace those of the book") {
  Fixture f;
  f.totals.Close(ClosureSource::Ends{.scheduled = 9, .failed = 3});
  CHECK(f.totals.Counts(4).failed == 3);
  CHECK(f.totals.Counts(4).cancelled == 2);
}

TEST_CASE("a job that ends without a book keeps the numbers of former lives") {
  Fixture f;
  v1::JobCounters counters;
  counters.set_repairs(7);
  f.totals.ReadCounters(counters);
  f.book.reset();
  f.totals.Close(ClosureSource::Ends{.scheduled = 9, .failed = 3});
  CHECK(f.totals.Counts(0).rerun == 7);
  CHECK(f.totals.Counts(0).failed == 0);
  CHECK(f.Counters().repairs() == 7);
}

TEST_CASE("lost updates add up, and a closure that loses twice is counted once") {
  Fixture f;
  CHECK(f.totals.OnLost(/*first=*/true, 4) == 1);
  CHECK(f.totals.OnLost(/*first=*/false, 2) == 1);
  f.totals.OnRepaired(8);
  f.Restart();
  const ClosureCounts counts = f.totals.Counts(0);
  CHECK(counts.lost == 1);
  CHECK(counts.updates_lost == 6);
  CHECK(counts.updates_redone == 8);
}

}  // namespace
}  // namespace evergrad::coordinator

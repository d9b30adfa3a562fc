// Counters of processes that come, go and return.
#include "coordinator/jobs/tally.h"

#include <catch2/catch.hpp>

using namespace evergrad::coordinator;

TEST_CASE("a process that returns after it was declared gone is counted once") {
  Tally tally;
  tally.Begin(1, false);
  tally.Report({10, 100, 1000, 1});
  tally.Begin(1, false);  // declared gone, and back
  CHECK(tally.total().steps == 10);
  tally.Report({12, 120, 1200, 1});
  CHECK(tally.total().steps == 12);
  CHECK(tally.total().examples == 120);
  CHECK(tally.total().bytes == 1200);
  CHECK(tally.total().duplicates == 1);
}

TEST_CASE("another process of the identity adds to what the former ones counted") {
  Tally tally;
  tally.Begin(1, false);
  tally.Report({10, 100, 1000, 1});
  tally.Begin(2, false);
  CHECK(tally.total().bytes == 1000);
  tally.Report({3, 30, 300, 0});
  tally.Report({4, 40, 400, 2});
  CHECK(tally.total().steps == 14);
  CHECK(tally.total().bytes == 1400);
  CHECK(tally.total().duplicates == 3);
}

TEST_CASE("what a process counted before the job is not the job's, whether it is known or only that it is older") {
  Tally known;
  known.Begin(1, false);
  known.SetBase(5000, 7);
  known.Report({1, 10, 5100, 9});
  CHECK(known.total().bytes == 100);
  CHECK(known.total().duplicates == 2);
  Tally older;
  older.Begin(1, true);
  CHECK(older.total().bytes == 0);
  older.Report({1, 10, 5100, 9});
  CHECK(older.total().bytes == 0);
  CHECK(older.total().steps == 1);  // steps are the job's own
  older.Report({2, 20, 5300, 9});
  CHECK(older.total().bytes == 200);
  CHECK(older.total().steps == 2);
}

TEST_CASE("a tally taken apart and put together goes on, and nonsense counts nothing") {
  Tally tally;
  tally.Begin(1, false);
  tally.Report({10, 100, 1000, 4});
  tally.Begin(2, false);
  tally.SetBase(500, 1);
  tally.Report({3, 30, 700, 2});
  Tally again = Tally::Of(tally.parts());
  CHECK_FALSE(again.Begin(2, true));  // the same process: nothing changes
  again.Report({4, 40, 800, 2});
  tally.Report({4, 40, 800, 2});
  CHECK(again.total().bytes == tally.total().bytes);
  CHECK(again.total().steps == 14);
  CHECK(again.total().duplicates == 5);
  Tally::Parts nonsense;
  nonsense.base.bytes = 100;
  CHECK(Tally::Of(nonsense).total().bytes == 0);
}

TEST_CASE("a total that begins anew in the same process loses nothing") {
  Tally tally;
  tally.Begin(1, false);
  tally.Report({10, 100, 1000, 0});
  tally.Report({2, 20, 1100, 0});
  CHECK(tally.total().steps == 12);
  CHECK(tally.total().examples == 120);
  CHECK(tally.total().bytes == 1100);
}

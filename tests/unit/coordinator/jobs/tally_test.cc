// Tests the counters of processes that start, end and return.
#include "coordinator/jobs/task_totals.h"

#include <catch2/catch.hpp>

using namespace evergrad::coordinator;

TEST_CASE("a process that returns after it was declared gone is counted once") {
  Tally tally;
  tally.Begin(1);
  tally.Report(1, {10, 100, 1000, 1});
  tally.Begin(1);  // the process was declared gone, and returns
  CHECK(tally.total().steps == 10);
  tally.Report(1, {12, 120, 1200, 1});
  CHECK(tally.total().steps == 12);
  CHECK(tally.total().examples == 120);
  CHECK(tally.total().bytes == 1200);
  CHECK(tally.total().duplicates == 1);
}

TEST_CASE("another process of the identity adds to the counts of former ones") {
  Tally tally;
  tally.Begin(1);
  tally.Report(1, {10, 100, 1000, 1});
  tally.Begin(2);
  CHECK(tally.total().bytes == 1000);
  tally.Report(1, {3, 30, 300, 0});
  tally.Report(1, {4, 40, 400, 2});
  CHECK(tally.total().steps == 14);
  CHECK(tally.total().bytes == 1400);
  CHECK(tally.total().duplicates == 3);
}

TEST_CASE(
    "a process that served another job in between counts anew, without loss or double counting") {
  Tally tally;
  tally.Begin(1);
  tally.Report(1, {10, 100, 1000, 0});
  tally.Report(3, {11, 110, 1100, 0});
  CHECK(tally.total().steps == 21);
  CHECK(tally.total().bytes == 2100);
  tally.Report(3, {12, 120, 1200, 0});
  CHECK(tally.total().steps == 22);
}

TEST_CASE("a tally continues after encoding and decoding") {
  Tally tally;
  tally.Begin(1);
  tally.Report(1, {10, 100, 1000, 4});
  tally.Begin(2);
  tally.Report(2, {3, 30, 700, 2});
  Tally again = Tally::Of(tally.parts());
  CHECK_FALSE(again.Begin(2));  // the tally knows this process already
  again.Report(2, {4, 40, 800, 2});
  CHECK(again.total().bytes == 1800);
  CHECK(again.total().steps == 14);
  CHECK(again.total().duplicates == 6);
}

TEST_CASE("a total that falls within one process loses nothing") {
  Tally tally;
  tally.Begin(1);
  tally.Report(1, {10, 100, 1000, 0});
  tally.Report(1, {2, 20, 1100, 0});
  CHECK(tally.total().steps == 12);
  CHECK(tally.total().examples == 120);
  CHECK(tally.total().bytes == 1100);
}

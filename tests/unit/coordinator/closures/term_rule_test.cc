// Tests the rule for terms (LEDGER line 18) with a table of cases, and the barrier (line 29).
#include <catch2/catch.hpp>

#include "coordinator/closures/closure_book.h"
#include "coordinator/closures/term_rule.h"

namespace evergrad::coordinator {
namespace {

TEST_CASE("a first term is above the journal's and above all that tasks report") {
  CHECK(FirstTerm(Term{0}, 0) == Term{1});
  CHECK(FirstTerm(Term{4}, 2) == Term{5});
  CHECK(FirstTerm(Term{4}, 9) == Term{10});
}

TEST_CASE(
    "a task of this life or an older one is registered; a task that has seen a later life, or "
    "another life of this term, makes the coordinator begin a new term") {
  const Term ours{5}, journal{5};
  CHECK_FALSE(BeginAnewWith(ours, 77, journal, {0, 0, 0}).has_value());
  CHECK_FALSE(BeginAnewWith(ours, 77, journal, {4, 12, 4}).has_value());
  CHECK_FALSE(BeginAnewWith(ours, 77, journal, {5, 77, 5}).has_value());
  CHECK(BeginAnewWith(ours, 77, journal, {5, 78, 0}) == Term{6});
  CHECK(BeginAnewWith(ours, 77, journal, {9, 78, 0}) == Term{10});
  // The epoch of a shard that the task holds shows that a coordinator has used the term 7.
  CHECK(BeginAnewWith(ours, 77, journal, {4, 12, 7}) == Term{8});
  CHECK(BeginAnewWith(ours, 77, Term{11}, {9, 78, 0}) == Term{12});
}

TEST_CASE(
    "the barrier waits for every closure below it, for held attempts and for repairs; a cancelled "
    "closure above it does not count instead") {
  ClosureBook book({4, 1, 8}, {});
  book.BeginLife(Term{1});
  CHECK_FALSE(book.BarrierReached(0));  // the start-up window is open
  book.CloseWindow();
  book.SetNewLimit(2);
  const MapVersion placed = book.Rollback(ShardId(0), "a").assigns.at(0).start;
  const auto done = [&](const ClosureBook::Granted& g, MapVersion v0) {
    CHECK(book.OnDone(g.closure, g.attempt, v0, v0).acknowledged);
  };
  const auto first = book.NextGrant(TaskId(1)), second = book.NextGrant(TaskId(1));
  REQUIRE(second.has_value());
  CHECK_FALSE(book.NextGrant(TaskId(1)).has_value());
  done(*first, placed);
  book.ReleaseAttempt(second->closure, second->attempt);
  book.Cancel(ClosureId(3));
  // Two closures have ended and no closure runs. The barrier is still not reached, because one of
  // the two is above the barrier, and closure 1 has not ended.
  CHECK_FALSE(book.BarrierReached(2));
  const auto again = book.NextGrant(TaskId(1));
  CHECK_FALSE(book.BarrierReached(2));
  done(*again, placed);
  CHECK(book.BarrierReached(2));
  CHECK_FALSE(book.BarrierReached(4));

  const MapVersion start = book.Rollback(ShardId(0), "b").assigns.at(0).start;
  CHECK_FALSE(book.BarrierReached(2));
  const auto repair = book.NextGrant(TaskId(1)), other = book.NextGrant(TaskId(1));
  REQUIRE(other.has_value());
  done(*repair, start);
  CHECK_FALSE(book.BarrierReached(2));
  done(*other, start);
  CHECK(book.BarrierReached(2));
}

}  // namespace
}  // namespace evergrad::coordinator

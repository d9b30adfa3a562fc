// Tests which closures each Close names (LEDGER line 24), and when every owner is known to refuse a
// closure (line 20).
#include <catch2/catch.hpp>

#include "coordinator/closures/close_tracker.h"

namespace evergrad::coordinator {
namespace {

const TaskId kSession(20), kLater(21);

// Server "a" owns two shards. The functions Succeed and Cancel end a closure.
struct Fixture {
  Fixture() {
    book.BeginLife(Term(1));
    for (std::uint32_t p = 0; p < 2; ++p) Place(p, "a");
  }
  void Place(std::uint32_t p, const std::string& server, const Snapshot* file = nullptr) {
    for (const auto& order : book.RollbackTo(ShardId(p), server, file).assigns)
      tracker.OnAssign(order);
  }
  void Succeed(std::uint64_t c) {
    Record record;
    record.succeeded_add.Add(c);
    book.Commit(record);
  }
  void Cancel(std::uint64_t c) {
    Record record;
    record.dead_add.Add(c);
    book.Commit(record);
  }
  std::vector<CloseTracker::Order> Make(TaskId session = kSession) {
    return tracker.Make(session, "a", book);
  }
  void Answer(std::uint32_t p, bool taken, TaskId session = kSession) {
    tracker.OnClosed(session, ShardId(p), book.state().map[p].epoch, taken, book.state());
  }
  bool Refused(std::uint64_t c) { return tracker.RefusedEverywhere({c}, book.state()); }

  DurableBook book{9, 2, {}};
  CloseTracker tracker{2};
};

TEST_CASE("the first Close of a session is whole, and later ones hold what was added") {
  Fixture f;
  CHECK(f.Make().empty());  // no closure has ended, so no Close is needed
  f.Succeed(0);
  f.Cancel(1);
  const auto first = f.Make();
  REQUIRE(first.size() == 2);
  for (const auto& order : first) {
    CHECK(order.whole);
    CHECK(order.done == IntervalSet{0});
    CHECK(order.refused == IntervalSet{1});
    CHECK(order.version == f.book.state().version);
    CHECK(order.epoch == f.book.state().map[order.shard.value()].epoch);
  }
  f.Succeed(2);
  CHECK(f.Make().empty());  // a Close is already in flight for each shard
  f.Answer(0, true);
  const auto second = f.Make();
  REQUIRE(second.size() == 1);
  CHECK(second[0].shard == ShardId(0));
  CHECK_FALSE(second[0].whole);
  CHECK(second[0].done == IntervalSet{2});
  CHECK(second[0].refused.empty());
}

TEST_CASE("after an ignored Close, and in another session, the next one is whole again") {
  Fixture f;
  f.Succeed(0);
  f.Make();
  f.Answer(0, false);
  f.Answer(1, true);
  const auto again = f.Make();
  REQUIRE(again.size() == 1);
  CHECK(again[0].whole);
  CHECK(again[0].done == IntervalSet{0});
  CHECK(f.Make(kLater).size() == 2);
  f.tracker.EndSession(kLater);
  CHECK(f.Make(kLater).size() == 2);
  CHECK(f.Make().empty());  // the first session has no other Close to get
}

TEST_CASE("a shard with a new epoch gets a whole Close without the closures that it lacks") {
  Fixture f;
  f.Succeed(0);
  f.Succeed(1);
  f.Make();
  const ShardEpoch former = f.book.state().map[0].epoch;
  Snapshot file;
  file.done = {0};
  f.Place(0, "a", &file);
  const auto orders = f.Make();
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].whole);
  CHECK(orders[0].done == IntervalSet{0});
  // An answer about a former epoch of the shard is ignored.
  f.tracker.OnClosed(kSession, ShardId(0), former, true, f.book.state());
  f.Succeed(2);
  CHECK(f.Make().empty());
}

TEST_CASE("Closes are settled when every owner has taken the present sets") {
  Fixture f;
  CHECK(f.tracker.Settled(f.book));
  f.Succeed(0);
  CHECK_FALSE(f.tracker.Settled(f.book));
  f.Make();
  f.Answer(0, true);
  CHECK_FALSE(f.tracker.Settled(f.book));
  f.Answer(1, true);
  CHECK(f.tracker.Settled(f.book));
  f.Succeed(1);
  CHECK_FALSE(f.tracker.Settled(f.book));
  f.Make();
  f.Answer(0, true);
  f.Answer(1, false);
  CHECK_FALSE(f.tracker.Settled(f.book));
}

TEST_CASE(
    "a closure is refused everywhere once each owner has taken it with a Close or an Assign") {
  Fixture f;
  f.Cancel(3);
  CHECK_FALSE(f.Refused(3));
  f.Make();
  f.Answer(0, true);
  CHECK_FALSE(f.Refused(3));
  SECTION("by a Close") { f.Answer(1, true); }
  SECTION("by the Assign to a new owner") { f.Place(1, "b"); }
  SECTION("or nobody owns the shard") { f.book.Unmap(ShardId(1)); }
  CHECK(f.Refused(3));
  CHECK_FALSE(f.Refused(4));
  f.tracker.BeginLife();
  CHECK_FALSE(f.Refused(3));
}

}  // namespace
}  // namespace evergrad::coordinator

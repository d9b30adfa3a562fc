// Tests the changes of the durable state that follow from this state alone. Each test also replays
// the records of the changes, which must give the same state.
#include <catch2/catch.hpp>

#include "coordinator/closures/durable_book.h"

namespace evergrad::coordinator {
namespace {

constexpr std::uint64_t kClosures = 10;

class Books {
 public:
  explicit Books(std::uint32_t shards, DurableState state = {})
      : book(kClosures, shards, state), replayed_(std::move(state)) {
    replayed_.Resize(shards);
    Keep(book.BeginLife(Term(book.state().term.value() + 1)));
  }
  void Keep(const Record& record) {
    ApplyRecord(record, &replayed_);
    CHECK(replayed_ == book.state());
  }
  DurableBook::MapChange Keep(DurableBook::MapChange change) {
    Keep(change.record);
    return change;
  }
  DurableBook::AssignOrder Place(std::uint32_t p, const std::string& server) {
    const auto change = Keep(book.Rollback(ShardId(p), server));
    REQUIRE(change.assigns.size() == 1);
    return change.assigns[0];
  }
  void Succeed(std::uint64_t begin, std::uint64_t end) {
    Record record;
    record.succeeded_add = IntervalSet::Range(begin, end);
    book.Commit(record);
    Keep(record);
  }

  DurableBook book;

 private:
  DurableState replayed_;
};

TEST_CASE("versions, epochs and attempts of a life share one sequence, which the term begins") {
  Books books(2);
  DurableBook& book = books.book;
  CHECK(book.state().version == MapVersion{1, 1});
  const auto placed = books.Place(0, "a");
  CHECK(placed.version == MapVersion{1, 2});
  CHECK(placed.start == placed.version);
  CHECK(placed.epoch == ShardEpoch{1, 3});
  CHECK(book.NextAttempt() == Attempt{1, 4});
  const auto moved = books.Keep(book.Move(ShardId(0), placed.epoch, "b")).assigns.at(0);
  CHECK(moved.epoch == ShardEpoch{1, 5});
  CHECK(moved.version == MapVersion{1, 6});
  CHECK(moved.start == placed.start);  // after a move no update is missing
  CHECK(book.newest_start() == placed.start);
  books.Keep(book.BeginLife(Term(3)));
  CHECK(book.state().version == MapVersion{3, 1});
  CHECK(book.NextAttempt() == Attempt{3, 2});
}

TEST_CASE("the revision rises with each change, and an empty record is none") {
  Books books(1);
  const std::uint64_t before = books.book.revision();
  books.book.Commit(Record{});
  CHECK(books.book.revision() == before);
  books.Succeed(0, 1);
  CHECK(books.book.revision() > before);
}

TEST_CASE(
    "a rolled-back shard lacks the closures that its file lacks, except those that are lost") {
  Books books(2);
  DurableBook& book = books.book;
  books.Place(0, "a");
  books.Succeed(0, 6);
  Record lost;
  lost.lost_add[0].Add(5);
  book.Commit(lost);
  books.Keep(lost);
  Snapshot file;
  file.done = IntervalSet::Range(0, 2);
  file.refused = {3, 8, 99};
  const auto change = books.Keep(book.RollbackTo(ShardId(0), "b", &file));
  // Closure 3 has succeeded, but the snapshot's ledger refuses it. Closure 3 is therefore lost at
  // this shard, and is not repaired.
  CHECK(book.state().todo[0] == IntervalSet{2, 4});
  CHECK(book.state().lost[0] == IntervalSet{3, 5});
  // Closure 8 has not ended, and the snapshot's ledger refuses it, so it becomes dead. Closure 99
  // is outside the plan.
  CHECK(change.record.dead_add == IntervalSet{8});
  CHECK(change.assigns.at(0).refused == IntervalSet{3, 5, 8});
  CHECK(change.map_changed);
  CHECK(book.state().todo[1].empty());
}

TEST_CASE("a move from an epoch that has passed changes nothing") {
  Books books(1);
  const ShardEpoch former = books.Place(0, "a").epoch;
  books.Place(0, "b");
  const auto change = books.Keep(books.book.Move(ShardId(0), former, "c"));
  CHECK(change.record.empty());
  CHECK_FALSE(change.map_changed);
  CHECK(books.book.state().map[0].server == "b");
}

TEST_CASE("nobody owns an unmapped shard; its epoch and its start stay") {
  Books books(2);
  const auto placed = books.Place(1, "a");
  CHECK(books.book.ShardsOf("a") == std::vector{ShardId(1)});
  const auto change = books.Keep(books.book.Unmap(ShardId(1)));
  CHECK(change.map_changed);
  CHECK(books.book.state().map[1] == ShardOwner{"", placed.epoch, placed.start});
  CHECK(books.book.ShardsOf("a").empty());
  CHECK_FALSE(books.book.Unmap(ShardId(1)).map_changed);
}

TEST_CASE("a server that registers keeps its shards, drops others, and gets back what it lost") {
  Books books(3);
  DurableBook& book = books.book;
  const auto held = books.Place(0, "a"), missing = books.Place(1, "a"), other = books.Place(2, "b");
  const std::vector<DurableBook::HeldShard> hello = {
      {held.shard, held.epoch, held.start, {}, {4}},
      {missing.shard, ShardEpoch{1, 1}, {}, {}, {}},  // the server holds an older epoch
      {other.shard, other.epoch, other.start, {}, {}},
      {ShardId(7), {}, {}, {}, {}}};
  SECTION("and the missing shard is rolled back on it") {
    const auto registered = book.RegisterServer("a", hello, false, true);
    books.Keep(registered.change.record);
    CHECK(registered.unheld.empty());
    REQUIRE(registered.change.assigns.size() == 1);
    CHECK(registered.change.assigns[0].shard == missing.shard);
    CHECK(registered.change.drops.size() == 3);
    CHECK(book.state().map[0].epoch == held.epoch);
    // The shard refuses closure 4, and the journal no longer knows why. Closure 4 therefore becomes
    // dead.
    CHECK(book.state().dead == IntervalSet{4});
  }
  SECTION("or the missing shard is only named") {
    const auto registered = book.RegisterServer("a", hello, false, false);
    books.Keep(registered.change.record);
    CHECK(registered.unheld == std::vector{missing.shard});
    CHECK(registered.change.assigns.empty());
    CHECK_FALSE(registered.change.map_changed);
  }
}

TEST_CASE(
    "a shard of a forgotten owner is adopted only in the window, and only from the last life") {
  Books former(1);
  former.Place(0, "a");
  former.Succeed(0, 3);
  const DurableState torn = former.book.state();
  const auto held = former.Place(0, "b");
  const auto adopts = [&](Term term, bool window_open) {
    DurableState state = torn;
    state.term = Term(term.value() - 1);
    Books books(1, state);
    const auto registered = books.book.RegisterServer(
        "b", {{held.shard, held.epoch, held.start, {1}, {}}}, window_open, true);
    books.Keep(registered.change.record);
    if (books.book.state().map[0].server == "a") return false;
    CHECK(books.book.state().map[0] == ShardOwner{"b", held.epoch, held.start});
    CHECK(books.book.state().todo[0] == IntervalSet{0, 2});
    return true;
  };
  CHECK(adopts(Term(2), true));
  CHECK_FALSE(adopts(Term(2), false));
  CHECK_FALSE(adopts(Term(3), true));
}

TEST_CASE("closures that have not ended are those of the plan in neither of the two sets") {
  Books books(1);
  books.Succeed(0, 4);
  Record record;
  record.dead_add.Add(5);
  books.book.Commit(record);
  CHECK(books.book.NotEnded(IntervalSet::Range(3, 20)) == IntervalSet{4, 6, 7, 8, 9});
}

}  // namespace
}  // namespace evergrad::coordinator

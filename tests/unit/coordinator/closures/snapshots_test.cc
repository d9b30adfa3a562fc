// Tests to which snapshot a shard is rolled back, and which closures the shard then lacks (LEDGER
// lines 21, 27 and 28).
#include <catch2/catch.hpp>

#include "coordinator/closures/closure_book.h"

namespace evergrad::coordinator {
namespace {

constexpr std::uint64_t kClosures = 10;

Snapshot File(const std::string& name, IntervalSet done, IntervalSet refused = {}) {
  Snapshot snapshot;
  snapshot.folder = "file:///c";
  snapshot.file = name;
  snapshot.done = std::move(done);
  snapshot.refused = std::move(refused);
  return snapshot;
}

// Returns a snapshot of shard `p` at the epoch of the shard's present owner.
Snapshot Of(const ClosureBook& book, std::uint32_t p, const std::string& name, IntervalSet done) {
  Snapshot snapshot = File(name, std::move(done));
  snapshot.epoch = book.durable().map[p].epoch;
  return snapshot;
}

ClosureBook NewBook(std::uint32_t shards, DurableState state = {}) {
  ClosureBook::Options options;
  options.closures = kClosures;
  options.shards = shards;
  const Term term(state.term.value() + 1);
  ClosureBook book(options, std::move(state));
  book.BeginLife(term);
  book.CloseWindow();
  return book;
}

// Grants the next closure to a worker and lets it succeed.
void RunOne(ClosureBook* book) {
  const auto granted = book->NextGrant(TaskId(1));
  REQUIRE(granted);
  const MapVersion v = book->durable().version;
  REQUIRE(book->OnDone(granted->closure, granted->attempt, v, v).acknowledged);
}

TEST_CASE(
    "a shard is restored from its newest snapshot, and the missing closures run again for this "
    "shard alone") {
  ClosureBook book = NewBook(2);
  book.Rollback(ShardId(0), "a");
  book.Rollback(ShardId(1), "a");
  for (int i = 0; i < 6; ++i) RunOne(&book);
  book.AddSnapshot(ShardId(1), Of(book, 1, "old", IntervalSet::Range(0, 2)));
  book.AddSnapshot(ShardId(1), Of(book, 1, "new", IntervalSet::Range(0, 4)));
  const auto change = book.Rollback(ShardId(1), "b");
  REQUIRE(change.assigns.size() == 1);
  REQUIRE(change.assigns[0].snapshot);
  CHECK(change.assigns[0].snapshot->file == "new");
  CHECK(book.durable().todo[1].ToString() == IntervalSet::Range(4, 6).ToString());
  CHECK(book.durable().todo[0].empty());
  CHECK_FALSE(book.Rollback(ShardId(0), "b").assigns[0].snapshot);

  SECTION("a damaged one is given up for the one before, and then for the seed") {
    CHECK_FALSE(book.RemoveSnapshots(ShardId(1), {"file:///c/new"}).empty());
    CHECK(book.Rollback(ShardId(1), "b").assigns[0].snapshot->file == "old");
    CHECK(book.durable().todo[1].ToString() == IntervalSet::Range(2, 6).ToString());
    book.RemoveSnapshots(ShardId(1), {"file:///c/old"});
    CHECK_FALSE(book.Rollback(ShardId(1), "b").assigns[0].snapshot);
    CHECK(book.durable().todo[1].ToString() == IntervalSet::Range(0, 6).ToString());
  }
  SECTION("a server that registers without it gets the same") {
    book.Rollback(ShardId(0), "c");
    const auto registration = book.RegisterServer("b", {});
    REQUIRE(registration.change.assigns.size() == 1);
    CHECK(registration.change.assigns[0].shard == ShardId(1));
    CHECK(registration.change.assigns[0].snapshot->file == "new");
  }
  SECTION("a repeated report, and giving up what is not known, change nothing") {
    CHECK(book.AddSnapshot(ShardId(1), Of(book, 1, "new", {})).empty());
    CHECK(book.RemoveSnapshots(ShardId(1), {"file:///c/none"}).empty());
  }
  SECTION(
      "a file that was written anew under its name is known by its new hash, also to who replays "
      "the records") {
    const DurableState before = book.durable();
    book.Rollback(ShardId(1), "b");
    DurableState replayed = book.durable();
    Snapshot first = Of(book, 1, "again", IntervalSet::Range(0, 4)), second = first;
    first.sha256 = "a";
    second.sha256 = "b";
    Record all;
    AppendRecord(book.AddSnapshot(ShardId(1), first), &all);
    AppendRecord(book.AddSnapshot(ShardId(1), second), &all);
    ApplyRecord(all, &replayed);
    CHECK(replayed.snapshots == book.durable().snapshots);
    CHECK(replayed.snapshots[1].size() == before.snapshots[1].size() + 1);
    CHECK(book.NewestSnapshot(ShardId(1))->sha256 == "b");
  }
}

TEST_CASE("a file of an owner before the present one is not entered: a sweep may have deleted it") {
  ClosureBook book = NewBook(1);
  book.Rollback(ShardId(0), "a");
  const Snapshot late = Of(book, 0, "late", IntervalSet::Range(0, 2));
  book.Rollback(ShardId(0), "b");
  CHECK(book.AddSnapshot(ShardId(0), late).empty());
  CHECK(book.NewestSnapshot(ShardId(0)) == nullptr);
}

TEST_CASE(
    "a shard that a former life stopped to move it is not held: a new start, whatever the journal "
    "says of it; what this life stopped is") {
  ClosureBook first = NewBook(1);
  first.Rollback(ShardId(0), "a");
  const DurableState before_move = first.durable();
  const ShardOwner source = before_move.map[0];
  const auto registers = [&](const DurableState& state, const ShardOwner& held, const char* server,
                             std::uint64_t stopped_in) {
    ClosureBook book({kClosures, 1, 4096}, state);
    book.BeginLife(Term(2));
    return book
        .RegisterServer(server, {{ShardId(0), held.epoch, held.start, {}, {}, false, stopped_in}})
        .change;
  };
  CHECK(registers(before_move, source, "a", 0).assigns.empty());
  CHECK(registers(before_move, source, "a", 2).assigns.empty());
  for (const std::uint64_t former : {1, 3}) {  // term 3 belongs to no life that the journal knows
    const auto change = registers(before_move, source, "a", former);
    REQUIRE(change.assigns.size() == 1);
    CHECK(change.assigns[0].start > source.start);
    CHECK(change.assigns[0].epoch > source.epoch);
    REQUIRE(change.drops.size() == 1);
    CHECK(change.drops[0].second == source.epoch);
  }
  // The stopped shard must not be adopted if the journal has also lost the Assign of its epoch.
  DurableState torn = before_move;
  torn.map[0].server = "b";
  torn.map[0].epoch = ShardEpoch{1, 0};
  CHECK(registers(torn, source, "a", 0).record.map.at(0) == source);
  CHECK(registers(torn, source, "a", 1).record.map.empty());
  CHECK(registers(torn, source, "a", 1).drops.size() == 1);
}

TEST_CASE(
    "in the start-up window a shard of the last life is adopted once it is loaded, and the owner "
    "that the journal names must drop it") {
  ClosureBook first = NewBook(1);
  first.Rollback(ShardId(0), "a");
  const DurableState torn = first.durable();
  first.Rollback(ShardId(0), "b");
  const ShardOwner held = first.durable().map[0];
  const auto registers = [&](std::uint64_t term, bool loading) {
    ClosureBook book({kClosures, 1, 4096}, torn);
    book.BeginLife(Term(term));
    return book.RegisterServer("b", {{ShardId(0), held.epoch, held.start, {}, {}, loading}}).change;
  };
  const auto adopted = registers(2, false);
  CHECK(adopted.drops.empty());
  CHECK(adopted.record.map.at(0) == held);
  REQUIRE(adopted.former.size() == 1);
  CHECK(adopted.former[0].first == "a");
  CHECK(adopted.former[0].second.second == torn.map[0].epoch);
  // The refused closures in its file are not known yet.
  CHECK(registers(2, true).drops.size() == 1);
  // In a life between, the former owner may have received pushes, so the former owner must drop its
  // shard.
  CHECK(registers(3, false).drops.size() == 1);
}

TEST_CASE(
    "replaying the records restores the snapshots, whatever was added and removed in one "
    "transaction") {
  ClosureBook book = NewBook(1);
  Record all = book.Rollback(ShardId(0), "a").record;
  AppendRecord(book.AddSnapshot(ShardId(0), Of(book, 0, "a", {})), &all);
  AppendRecord(book.AddSnapshot(ShardId(0), Of(book, 0, "b", {})), &all);
  AppendRecord(book.RemoveSnapshots(ShardId(0), {"file:///c/a"}), &all);
  AppendRecord(book.AddSnapshot(ShardId(0), Of(book, 0, "c", {})), &all);
  DurableState replayed;
  ApplyRecord(all, &replayed);
  CHECK(replayed.snapshots == book.durable().snapshots);
  REQUIRE(replayed.snapshots[0].size() == 2);
  CHECK(replayed.snapshots[0].back().file == "c");
}

TEST_CASE(
    "a job that resumes counts closures that every shard has, and never runs a closure that any "
    "shard refuses") {
  ClosureBook book = NewBook(2);
  IntervalSet refused;
  refused.Add(5);
  book.ResumeFrom(
      {File("s0", IntervalSet::Range(0, 5)), File("s1", IntervalSet::Range(0, 3), refused)});
  CHECK(book.durable().succeeded.ToString() == IntervalSet::Range(0, 3).ToString());
  CHECK(book.durable().dead.ToString() == refused.ToString());
  for (std::uint32_t p = 0; p < 2; ++p) {
    const auto change = book.Rollback(ShardId(p), "a");
    REQUIRE(change.assigns[0].snapshot);
    CHECK(change.assigns[0].snapshot->file == "s" + std::to_string(p));
    CHECK(change.assigns[0].refused.ToString() == refused.ToString());
    CHECK(book.durable().todo[p].empty());
  }
  std::vector<std::uint64_t> order;
  while (const auto granted = book.NextGrant(TaskId(1))) order.push_back(granted->closure.value());
  CHECK(order == std::vector<std::uint64_t>{3, 4, 6, 7, 8, 9});
}

}  // namespace
}  // namespace evergrad::coordinator

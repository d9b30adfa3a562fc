// Tests the contract that every implementation of StateStore must meet. For a new store, add a
// function that makes it to `kStores`.
#include <catch2/catch.hpp>

#include "store_fixture.h"

namespace evergrad::coordinator {
namespace {

struct Maker {
  const char* name;
  std::unique_ptr<Reopenable> (*make)();
};
const Maker kStores[] = {
    {"memory", [] { return std::unique_ptr<Reopenable>(new ReopenableMemory(0)); }},
    {"memory, last commits apart",
     [] { return std::unique_ptr<Reopenable>(new ReopenableMemory(3)); }},
    {"sqlite", [] { return std::unique_ptr<Reopenable>(new ReopenableSqlite()); }},
};

Record Succeeded(std::uint64_t c) {
  Record record;
  record.succeeded_add.Add(c);
  return record;
}

TEST_CASE("a state store returns the results of its commits") {
  for (const Maker& maker : kStores) {
    INFO(maker.name);
    const auto made = maker.make();
    StateStore* store = &made->store();
    CHECK(store->ListJobs()->empty());
    CHECK(store->Load(JobUid(1)).status().code() == absl::StatusCode::kNotFound);

    DurableState want;
    for (std::uint64_t i = 0; i < 10; ++i) {
      Record record = Succeeded(i);
      record.version = MapVersion{1, i + 1};
      record.map[static_cast<std::uint32_t>(i % 3)] = {"a", {1, i}, {1, i}};
      record.todo_add[1].Add(i);
      if (i > 4) record.todo_remove[1].Add(i - 4);
      ApplyRecord(record, &want);
      REQUIRE(store->Commit(JobUid(1), record).ok());
      REQUIRE(store->Commit(JobUid(2), Succeeded(100 + i)).ok());
      CHECK(*store->Load(JobUid(1)) == want);
    }
    for (const bool reopened : {false, true}) {
      INFO("reopened " << reopened);
      if (reopened) {
        REQUIRE(store->Sync().ok());
        made->Reopen();
        store = &made->store();
        CHECK(*store->Load(JobUid(1)) == want);
      }
      CHECK(*store->ListJobs() == std::vector<JobUid>{JobUid(1), JobUid(2)});
    }
    CHECK(store->Load(JobUid(2))->succeeded == IntervalSet::Range(100, 110));

    REQUIRE(store->Remove(JobUid(1)).ok());
    REQUIRE(store->Remove(JobUid(1)).ok());
    CHECK(*store->ListJobs() == std::vector<JobUid>{JobUid(2)});
    CHECK(store->Load(JobUid(1)).status().code() == absl::StatusCode::kNotFound);
    REQUIRE(store->Commit(JobUid(1), Succeeded(5)).ok());
    CHECK(store->Load(JobUid(1))->succeeded == IntervalSet{5});
    CHECK(*store->ListJobs() == std::vector<JobUid>{JobUid(2), JobUid(1)});
    made->Reopen();
    CHECK(*made->store().ListJobs() == std::vector<JobUid>{JobUid(2), JobUid(1)});
  }
}

TEST_CASE(
    "notes are returned in order, a checkpoint replaces earlier notes, and both survive a "
    "restart") {
  for (const Maker& maker : kStores) {
    INFO(maker.name);
    const auto made = maker.make();
    StateStore* store = &made->store();
    REQUIRE(store->Commit(JobUid(7), Succeeded(1), "one").ok());
    REQUIRE(store->Commit(JobUid(7), Record(), "two").ok());
    REQUIRE(store->Commit(JobUid(7), Succeeded(2)).ok());
    StoredJob stored = *store->LoadJob(JobUid(7));
    CHECK(stored.snapshot.empty());
    CHECK(stored.notes == std::vector<std::string>{"one", "two"});
    CHECK(stored.state.succeeded == IntervalSet::Range(1, 3));

    // The snapshot is larger than a page of the database and contains every byte value.
    std::string snapshot(300'000, '\0');
    for (std::size_t i = 0; i < snapshot.size(); ++i) snapshot[i] = static_cast<char>(i * 31);
    DurableState state = stored.state;
    for (std::uint32_t p = 0; p < 500; ++p) {
      Record record;
      record.map[p] = {"server with a long name " + std::to_string(p), {3, p}, {3, p}};
      record.todo_add[p] = {p, p + 2, ~0ull - 1};
      record.lost_add[p] = {p + 1000};
      ApplyRecord(record, &state);
    }
    REQUIRE(store->Checkpoint(JobUid(7), state, snapshot).ok());
    REQUIRE(store->Commit(JobUid(7), Succeeded(9), "three").ok());
    REQUIRE(store->Commit(JobUid(8), Succeeded(1), std::string(100'000, 'x')).ok());
    ApplyRecord(Succeeded(9), &state);
    for (const bool reopened : {false, true}) {
      INFO("reopened " << reopened);
      if (reopened) {
        made->Reopen();
        store = &made->store();
      }
      stored = *store->LoadJob(JobUid(7));
      CHECK(stored.snapshot == snapshot);
      CHECK(stored.notes == std::vector<std::string>{"three"});
      CHECK(stored.state == state);
      CHECK(store->LoadJob(JobUid(8))->notes ==
            std::vector<std::string>{std::string(100'000, 'x')});
    }
  }
}

TEST_CASE("a store remembers the jobs that it removed, and no others") {
  for (const Maker& maker : kStores) {
    INFO(maker.name);
    const auto made = maker.make();
    REQUIRE(made->store().Commit(JobUid(7), Succeeded(1)).ok());
    REQUIRE(made->store().Commit(JobUid(~0ull), Succeeded(1)).ok());
    REQUIRE(made->store().Commit(JobUid(9), Succeeded(1)).ok());
    for (const std::uint64_t uid : {7ull, ~0ull, 8ull})
      REQUIRE(made->store().Remove(JobUid(uid)).ok());
    for (const bool reopened : {false, true}) {
      INFO("reopened " << reopened);
      if (reopened) made->Reopen();
      CHECK(made->store().Removed(JobUid(7)));
      CHECK(made->store().Removed(JobUid(~0ull)));
      CHECK_FALSE(made->store().Removed(JobUid(8)));
      CHECK_FALSE(made->store().Removed(JobUid(9)));
    }
  }
}

TEST_CASE("the newest removed jobs are remembered, also after a restart") {
  RemovedJobs few(2);
  CHECK(few.Add(JobUid(1)) == std::nullopt);
  CHECK(few.Add(JobUid(2)) == std::nullopt);
  CHECK(few.Add(JobUid(2)) == std::nullopt);
  CHECK(few.Add(JobUid(3)) == JobUid(1));
  CHECK((!few.Contains(JobUid(1)) && few.Contains(JobUid(2)) && few.Contains(JobUid(3))));

  ReopenableSqlite made;
  for (std::uint64_t i = 0; i < StateStore::kRemovedMax + 3; ++i) {
    REQUIRE(made.store().Commit(JobUid(i + 1), Succeeded(1)).ok());
    REQUIRE(made.store().Remove(JobUid(i + 1)).ok());
  }
  made.Reopen();
  CHECK_FALSE(made.store().Removed(JobUid(3)));
  CHECK(made.store().Removed(JobUid(4)));
  CHECK(made.store().Removed(JobUid(StateStore::kRemovedMax + 3)));
}

TEST_CASE("commits become durable in order, and durable() returns the last durable one") {
  for (const Maker& maker : kStores) {
    INFO(maker.name);
    const auto made = maker.make();
    StateStore& store = made->store();
    CHECK(store.accepted() == store.durable());
    for (std::uint64_t i = 0; i < 100; ++i) REQUIRE(store.Commit(JobUid(1), Succeeded(i)).ok());
    CHECK(store.accepted() == 100);
    REQUIRE(store.Sync().ok());
    CHECK(store.durable() == 100);
    CHECK(store.health().ok());
  }
}

TEST_CASE("a term only rises, and is independent of the jobs") {
  for (const Maker& maker : kStores) {
    INFO(maker.name);
    const auto made = maker.make();
    StateStore* store = &made->store();
    CHECK(store->term() == Term(0));
    REQUIRE(store->CommitTerm(Term(3)).ok());
    CHECK(store->CommitTerm(Term(3)).code() == absl::StatusCode::kInvalidArgument);
    CHECK(store->CommitTerm(Term(2)).code() == absl::StatusCode::kInvalidArgument);
    CHECK(store->term() == Term(3));
    CHECK(store->ListJobs()->empty());
    made->Reopen();
    CHECK(made->store().term() == Term(3));
  }
}

TEST_CASE("the memory store refuses jobs above its limit with a message") {
  MemoryStateStore store({.jobs_max = 1, .torn_max = 0});
  REQUIRE(store.Commit(JobUid(1), Succeeded(1)).ok());
  CHECK(store.Commit(JobUid(2), Succeeded(1)).code() == absl::StatusCode::kResourceExhausted);
  CHECK(store.Commit(JobUid(1), Succeeded(2)).ok());
}

TEST_CASE("a torn tail loses only the last commits, and none before a synced term") {
  MemoryStateStore store({.jobs_max = 8, .torn_max = 3});
  for (std::uint64_t i = 0; i < 6; ++i) REQUIRE(store.Commit(JobUid(1), Succeeded(i)).ok());
  CHECK(store.TearTail(2) == 2);
  CHECK(store.Load(JobUid(1))->succeeded == IntervalSet::Range(0, 4));
  CHECK(store.TearTail(9) == 1);
  CHECK(store.Load(JobUid(1))->succeeded == IntervalSet::Range(0, 3));
  REQUIRE(store.Commit(JobUid(2), Succeeded(7)).ok());
  CHECK(store.TearTail(1) == 1);
  CHECK(*store.ListJobs() == std::vector<JobUid>{JobUid(1)});
  REQUIRE(store.Commit(JobUid(1), Succeeded(8)).ok());
  REQUIRE(store.CommitTerm(Term(2)).ok());
  CHECK(store.TearTail(3) == 0);
  CHECK(store.Load(JobUid(1))->succeeded.Contains(8));
}

TEST_CASE("one record has the effect of two consecutive ones") {
  Record first = Succeeded(1), second = Succeeded(2);
  first.todo_add[0] = IntervalSet::Range(0, 5);
  first.map[0] = {"a", {1, 1}, {1, 1}};
  second.todo_remove[0] = {3};
  second.todo_add[0] = {9};
  second.map[0] = {"b", {1, 2}, {1, 2}};
  second.version = MapVersion{1, 2};
  DurableState apart, together;
  ApplyRecord(first, &apart);
  ApplyRecord(second, &apart);
  Record both = first;
  AppendRecord(second, &both);
  ApplyRecord(both, &together);
  CHECK(together == apart);
}

}  // namespace
}  // namespace evergrad::coordinator

// One contract, every implementation: add a maker to `kStores`.
#include "coordinator/jobs/state_store.h"

#include <catch2/catch.hpp>

namespace evergrad::coordinator {
namespace {

struct Maker {
  const char* name;
  std::unique_ptr<StateStore> (*make)();
};
const Maker kStores[] = {
    {"memory", [] { return std::unique_ptr<StateStore>(new MemoryStateStore()); }},
    {"memory, last commits apart", [] { return std::unique_ptr<StateStore>(new MemoryStateStore({.jobs_max = 1024, .torn_max = 3})); }},
};

Record Succeeded(std::uint64_t c) {
  Record record;
  record.succeeded_add.Add(c);
  return record;
}

TEST_CASE("a state store gives back what its commits make") {
  for (const Maker& maker : kStores) {
    INFO(maker.name);
    const auto store = maker.make();
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
    CHECK(*store->ListJobs() == std::vector<JobUid>{JobUid(1), JobUid(2)});
    CHECK(store->Load(JobUid(2))->succeeded == IntervalSet::Range(100, 110));

    REQUIRE(store->Remove(JobUid(1)).ok());
    REQUIRE(store->Remove(JobUid(1)).ok());
    CHECK(*store->ListJobs() == std::vector<JobUid>{JobUid(2)});
    CHECK(store->Load(JobUid(1)).status().code() == absl::StatusCode::kNotFound);
    REQUIRE(store->Commit(JobUid(1), Succeeded(5)).ok());
    CHECK(store->Load(JobUid(1))->succeeded == IntervalSet{5});
  }
}

TEST_CASE("a term only grows, and is apart from the jobs") {
  for (const Maker& maker : kStores) {
    INFO(maker.name);
    const auto store = maker.make();
    CHECK(store->term() == Term(0));
    REQUIRE(store->CommitTerm(Term(3)).ok());
    CHECK(store->CommitTerm(Term(3)).code() == absl::StatusCode::kInvalidArgument);
    CHECK(store->CommitTerm(Term(2)).code() == absl::StatusCode::kInvalidArgument);
    CHECK(store->term() == Term(3));
    CHECK(store->ListJobs()->empty());
  }
}

TEST_CASE("the memory store refuses jobs above its bound, and says so") {
  MemoryStateStore store({.jobs_max = 1, .torn_max = 0});
  REQUIRE(store.Commit(JobUid(1), Succeeded(1)).ok());
  CHECK(store.Commit(JobUid(2), Succeeded(1)).code() == absl::StatusCode::kResourceExhausted);
  CHECK(store.Commit(JobUid(1), Succeeded(2)).ok());
}

TEST_CASE("a torn tail loses the last commits, never one before a synced term") {
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

TEST_CASE("one record does what two in a row do") {
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

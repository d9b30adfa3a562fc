// Tests the order in which closures are granted (LEDGER line 23), and which attempts of a
// registering worker are adopted (line 26).
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>

#include "coordinator/closures/attempt_table.h"

namespace evergrad::coordinator {
namespace {

constexpr std::uint64_t kClosures = 10;
constexpr std::uint32_t kShards = 3;
const TaskId kWorker(1), kOther(2);

// The attempt table, with the durable state that a ClosureBook keeps for it.
struct Fixture {
  explicit Fixture(std::uint64_t closures = kClosures, std::uint32_t open_max = 100)
      : state(Empty()), table(closures, open_max, state) {}
  static DurableState Empty() {
    DurableState state;
    state.Resize(kShards);
    return state;
  }
  void Commit(const Record& record) {
    ApplyRecord(record, &state);
    table.OnCommit(record, state);
  }
  std::optional<AttemptTable::Granted> Grant(TaskId worker = kWorker, bool grants_new = true,
                                             const AttemptTable::Filter& may = {}) {
    auto granted = table.ChooseNext(state, grants_new, may);
    if (!granted) return granted;
    granted->attempt = {1, ++n};
    table.Begin(*granted, worker);
    return granted;
  }
  // Grants the next closure to `worker` and returns the number of the closure.
  std::uint64_t Next(TaskId worker = kWorker, bool grants_new = true,
                     const AttemptTable::Filter& may = {}) {
    const auto granted = Grant(worker, grants_new, may);
    return granted ? granted->closure.value() : kNone;
  }
  void Succeed(std::uint64_t c) {
    if (const auto it = Find(c); it != table.current().end()) table.Forget(it);
    Record record;
    record.succeeded_add.Add(c);
    Commit(record);
  }
  void Lack(std::uint32_t p, IntervalSet closures) {
    Record record;
    record.todo_add[p] = std::move(closures);
    Commit(record);
  }
  AttemptTable::Map::const_iterator Find(std::uint64_t c) const {
    return table.current().find(ClosureId(c));
  }

  static constexpr std::uint64_t kNone = ~0ull;
  DurableState state;
  AttemptTable table;
  std::uint64_t n = 0;
};
constexpr std::uint64_t kNone = Fixture::kNone;

TEST_CASE("repairs are granted first, then requeued closures, then new ones") {
  Fixture f;
  CHECK(f.Next() == 0);
  CHECK(f.Next() == 1);
  CHECK(f.Next() == 2);
  CHECK(f.table.with_all_targets() == 3);
  f.Succeed(1);
  f.Lack(0, {1});
  f.Lack(2, {1});
  f.table.Release(f.Find(2), f.state);
  CHECK(f.table.RepairsPending());
  CHECK(f.table.RepairsLeft(f.state) == 2);
  const auto repair = f.Grant();
  REQUIRE(repair);
  CHECK(repair->closure == ClosureId(1));
  CHECK(repair->repair);
  CHECK_FALSE(repair->all_targets);
  CHECK(repair->targets == std::set{ShardId(0), ShardId(2)});
  CHECK(f.table.repairs_granted() == 1);
  CHECK(f.table.with_all_targets() == 1);
  CHECK(f.table.RequeuedWait());
  CHECK(f.Next() == 2);
  CHECK_FALSE(f.table.RequeuedWait());
  CHECK(f.Next() == 3);
}

TEST_CASE("open_max and an evaluation that is due hold back new closures only") {
  Fixture f(kClosures, 2);
  CHECK(f.Next(kWorker, false) == kNone);
  CHECK(f.Next() == 0);
  CHECK(f.Next() == 1);
  CHECK(f.Next() == kNone);
  f.table.Release(f.Find(0), f.state);
  CHECK(f.Next(kWorker, false) == 0);
  f.Succeed(1);
  f.Lack(0, {1});
  CHECK(f.Next(kWorker, false) == 1);
  CHECK(f.Next() == 2);
}

TEST_CASE("new closures end at the limit and at the plan's end, and ended ones are passed over") {
  Fixture f(5);
  f.Succeed(1);
  Record record;
  record.dead_add.Add(2);
  f.Commit(record);
  f.table.SetNewLimit(3);
  CHECK(f.Next() == 0);
  CHECK(f.Next() == kNone);
  CHECK(f.table.next_new() == 3);
  f.table.SetNewLimit(100);
  CHECK(f.Next() == 3);
  CHECK(f.Next() == 4);
  CHECK(f.Next() == kNone);
  CHECK(f.table.next_new() == 5);
}

TEST_CASE("a closure that a worker cannot run waits for another worker") {
  Fixture f;
  const AttemptTable::Filter odd = [](ClosureId c) { return c.value() % 2 == 1; };
  CHECK(f.Next(kWorker, true, odd) == 1);
  CHECK(f.Next(kWorker, true, odd) == 3);
  CHECK(f.Next(kWorker, false, odd) == kNone);
  CHECK(f.Next(kOther, false) == 0);
  CHECK(f.Next(kOther, false) == 2);
  CHECK(f.Next(kOther) == 4);
  for (std::uint64_t c = 0; c < 4; ++c) f.Succeed(c);
  f.Lack(0, {0, 1, 2, 3});
  CHECK(f.Next(kWorker, false, odd) == 1);
  CHECK(f.Next(kWorker, false, odd) == 3);
  CHECK(f.Next(kWorker, false, odd) == kNone);
  CHECK(f.Next(kOther, false) == 0);
}

TEST_CASE("a released closure is granted again unless it has ended") {
  Fixture f;
  for (std::uint64_t c = 0; c < 4; ++c) CHECK(f.Next(c < 2 ? kWorker : kOther) == c);
  Record record;
  // Closure 0 may succeed without its attempt, for example because a repair of it succeeded.
  record.succeeded_add.Add(0);
  f.Commit(record);
  CHECK(f.table.ReleaseWorker(kWorker, f.state) == std::vector{ClosureId(0), ClosureId(1)});
  CHECK(f.table.current().size() == 2);
  CHECK(f.Next(kOther, false) == 1);
  CHECK(f.Next(kOther, false) == kNone);

  f.table.ReleaseWorker(kOther, f.state);
  f.table.Unqueue({1, 2});
  CHECK(f.Next(kOther, false) == 3);
  CHECK(f.Next(kOther, false) == kNone);
  f.table.Forget(IntervalSet{3});
  CHECK(f.table.current().empty());
  CHECK(f.table.with_all_targets() == 0);
}

TEST_CASE("an attempt of a registered worker is adopted unless a higher one is current") {
  Fixture f;
  f.n = 5;
  CHECK(f.Next() == 0);
  CHECK_FALSE(f.table.Adopt(ClosureId(0), {{1, 5}, kOther, true, {}}));
  CHECK(f.Find(0)->second.worker == kWorker);
  CHECK(f.table.Adopt(ClosureId(0), {{1, 6}, kOther, true, {}}));
  CHECK(f.Find(0)->second.worker == kOther);
  CHECK(f.table.with_all_targets() == 1);
  CHECK(f.table.Adopt(ClosureId(2), {{1, 7}, kOther, true, {}}));
  CHECK(f.table.Adopt(ClosureId(7), {{1, 8}, kOther, false, {ShardId(0)}}));
  CHECK(f.table.with_all_targets() == 2);
  CHECK(f.Next() == 1);
  CHECK(f.Next() == 3);  // not 2, because the adopted attempt of closure 2 runs
  // Closure 1 waits to be granted again. When another worker's attempt of it is adopted, it must no
  // longer wait.
  f.table.Release(f.Find(1), f.state);
  CHECK(f.table.Adopt(ClosureId(1), {{1, 9}, kOther, true, {}}));
  CHECK(f.Next(kWorker, false) == kNone);
}

TEST_CASE("a new life knows no attempt, and the limit of new closures stays") {
  Fixture f;
  f.Lack(0, {0});
  f.table.SetNewLimit(2);
  CHECK(f.Next() == 0);
  CHECK(f.Next() == 1);  // not 0, because closure 0 is being repaired
  f.table.BeginLife();
  CHECK(f.table.current().empty());
  CHECK(f.table.next_new() == 0);
  CHECK(f.Grant()->repair);
  CHECK(f.Next() == 1);
  CHECK(f.Next() == kNone);
}

TEST_CASE("the next repair is the lowest closure that a shard lacks and nobody repairs") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    INFO("seed=" << seed);
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t limit) { return random() % limit; };
    Fixture f(0);
    for (int i = 0; i < 150; ++i) {
      const auto p = static_cast<std::uint32_t>(below(kShards));
      const std::uint64_t c = below(20);
      const std::uint64_t even = below(2);
      Record record;
      switch (below(4)) {
        case 0: record.todo_add[p].Add(c); break;
        case 1: record.todo_remove[p].Add(c); break;
        case 2:
          if (const auto it = f.Find(c); it != f.table.current().end()) f.table.Forget(it);
          break;
        default: {
          const auto may = [&](ClosureId closure) { return even == 0 || closure.value() % 2 == 0; };
          std::uint64_t want = kNone;
          for (std::uint64_t k = 20; k-- > 0;) {
            const bool lacks = std::any_of(f.state.todo.begin(), f.state.todo.end(),
                                           [&](const IntervalSet& set) { return set.Contains(k); });
            if (lacks && f.Find(k) == f.table.current().end() && may(ClosureId(k))) want = k;
          }
          CHECK(f.Next(kWorker, false, may) == want);
        }
      }
      f.Commit(record);
      std::uint64_t left = 0;
      for (const IntervalSet& todo : f.state.todo) left += todo.size();
      CHECK(f.table.RepairsLeft(f.state) == left);
      CHECK(f.table.RepairsPending() == (left > 0));
    }
  }
}

}  // namespace
}  // namespace evergrad::coordinator

#include "worker/runner/attempt_book.h"

#include <catch2/catch.hpp>

#include <algorithm>

namespace evergrad::worker {
namespace {

constexpr JobUid kJob{1};
Attempt A(std::uint64_t n, std::uint64_t term = 1) { return {term, n}; }
MapVersion V(std::uint64_t n, std::uint64_t term = 1) { return {term, n}; }
ShardMap Map(MapVersion version, JobUid job = kJob) { return {version, {{}, {}, {}}, job}; }
Work Train(std::uint64_t c, Attempt attempt) {
  Work work;
  work.job = kJob;
  work.closure = ClosureId(c);
  work.attempt = attempt;
  return work;
}
const UpdateIndex u0{0}, u1{1};
const ShardId p0{0}, p1{1};

// Returns a book that runs attempt 1 of closure 0 under the map version 5. Update 0 is not settled
// yet at the shards p0 and p1.
AttemptBook Running() {
  AttemptBook book;
  book.OnMap(Map(V(5)));
  REQUIRE(book.OnGrant(Train(0, A(1))));
  book.Begin(A(1));
  book.Expect(u0, {p0, p1});
  return book;
}

TEST_CASE("a Done carries the map of the first push and that of the last settlement") {
  AttemptBook book = Running();
  CHECK(book.OnPushAnswer(A(1), u0, p0, PushAnswer::kApplied, {}).next == Next::kSettled);
  book.OnMap(Map(V(7)));
  CHECK_FALSE(book.MayFinish(true));
  CHECK(book.OnPushAnswer(A(1), u0, p1, PushAnswer::kDuplicate, {}).next == Next::kSettled);
  book.OnMap(Map(V(9)));
  REQUIRE(book.AllSettled());
  CHECK_FALSE(book.MayFinish(false));
  const DoneReport report = book.Finish();
  CHECK(report.v0 == V(5));
  CHECK(report.v1 == V(7));
  CHECK(book.running() == nullptr);
}

TEST_CASE("the touched shards in an attempt's report count updates, not pushes or answers") {
  AttemptBook book = Running();
  CHECK(book.TouchedLess() == std::vector<std::pair<std::uint32_t, std::uint32_t>>{{2, 0}});
  book.Expect(u1, {p1});
  book.OnPushAnswer(A(1), u0, p0, PushAnswer::kApplied, {});
  book.OnPushAnswer(A(1), u0, p1, PushAnswer::kBusy, {});
  CHECK(book.TouchedLess() == std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 1}, {2, 0}});
  book.Expect(UpdateIndex(2), {});  // this update has no rows for any server
  CHECK(book.TouchedLess() ==
        std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 1}, {1, 2}, {2, 0}});
}

TEST_CASE("each answer of a push changes the attempt as its rule says") {
  struct Row {
    PushAnswer answer;
    MapVersion server;
    Next want;
    bool still_runs, still_unsettled;
  };
  const Row rows[] = {
      {PushAnswer::kApplied, {}, Next::kSettled, true, false},
      {PushAnswer::kDuplicate, {}, Next::kSettled, true, false},
      {PushAnswer::kStale, V(6), Next::kWaitForMap, true, true},
      {PushAnswer::kStale, V(5), Next::kBackoff, true, true},
      {PushAnswer::kStale, V(2), Next::kBackoff, true, true},
      {PushAnswer::kBusy, {}, Next::kBackoff, true, true},
      {PushAnswer::kTransport, {}, Next::kBackoff, true, true},
      {PushAnswer::kSuperseded, {}, Next::kDropAttempt, false, false},
      {PushAnswer::kRefused, {}, Next::kDropAttempt, false, false},
      {PushAnswer::kInvalid, {}, Next::kFail, true, true},
      {PushAnswer::kOverBudget, {}, Next::kFail, true, true},
  };
  for (const Row& row : rows) {
    INFO(static_cast<int>(row.answer) << " at " << row.server.ToString());
    AttemptBook book = Running();
    const Disposition d = book.OnPushAnswer(A(1), u0, p0, row.answer, row.server);
    CHECK(d.next == row.want);
    if (row.want == Next::kWaitForMap) CHECK(d.wait_for == row.server);
    CHECK((book.running() != nullptr) == row.still_runs);
    const auto left = book.Unsettled(u0);
    CHECK((std::find(left.begin(), left.end(), p0) != left.end()) == row.still_unsettled);
  }
}

TEST_CASE("OVER_BUDGET is retried if the job waits for memory, and otherwise ends the attempt") {
  AttemptBook book = Running();
  book.SetOverBudget(AttemptBook::OverBudget::kPause);
  for (int i = 0; i < 3; ++i)
    CHECK(book.OnPushAnswer(A(1), u0, p0, PushAnswer::kOverBudget, {}).next == Next::kBackoff);
  CHECK(book.Unsettled(u0) == std::vector<ShardId>{p0, p1});
  CHECK(book.OnPushAnswer(A(1), u0, p0, PushAnswer::kApplied, {}).next == Next::kSettled);
  book.SetOverBudget(AttemptBook::OverBudget::kFail);
  CHECK(book.OnPushAnswer(A(1), u0, p1, PushAnswer::kOverBudget, {}).next == Next::kFail);
}

TEST_CASE("late and duplicate answers change nothing") {
  AttemptBook book = Running();
  book.OnPushAnswer(A(1), u0, p0, PushAnswer::kApplied, {});
  CHECK(book.OnPushAnswer(A(1), u0, p0, PushAnswer::kSuperseded, {}).next == Next::kSettled);
  CHECK(book.OnPushAnswer(A(1), u1, p0, PushAnswer::kInvalid, {}).next == Next::kSettled);
  CHECK(book.OnPushAnswer(A(9), u0, p1, PushAnswer::kApplied, {}).next == Next::kDropAttempt);
  CHECK(book.Unsettled(u0) == std::vector<ShardId>{p1});
}

TEST_CASE("a Done is kept and resent until it is answered, whatever the answer") {
  for (const bool superseded : {false, true}) {
    AttemptBook book = Running();
    for (const ShardId p : {p0, p1}) book.OnPushAnswer(A(1), u0, p, PushAnswer::kApplied, {});
    book.Finish();
    CHECK(book.OnRegistered(Term(1), {A(1)}).empty());
    REQUIRE(book.Unanswered().size() == 1);
    CHECK(book.Unanswered()[0].v0 == V(5));
    CHECK(book.OnDoneAnswer(A(1), superseded));
    CHECK(book.Unanswered().empty());
    CHECK_FALSE(book.OnDoneAnswer(A(1), superseded));
  }
}

TEST_CASE("the Hello names all held attempts, with the newest map that each may have used") {
  AttemptBook book = Running();
  for (const ShardId p : {p0, p1}) book.OnPushAnswer(A(1), u0, p, PushAnswer::kApplied, {});
  book.Finish();
  book.OnMap(Map(V(6)));
  book.OnGrant(Train(1, A(2)));
  book.OnGrant(Train(2, A(3)));
  book.Begin(A(2));
  book.OnMap(Map(V(8)));
  const auto held = book.HeldForHello();
  REQUIRE(held.size() == 3);
  CHECK((held[0].work.attempt == A(1) && held[0].done && held[0].v1 == V(5)));
  CHECK((held[1].work.attempt == A(2) && held[1].begun && !held[1].done && held[1].v1 == V(8)));
  CHECK((held[2].work.attempt == A(3) && !held[2].begun && held[2].v1 == MapVersion{}));
}

TEST_CASE("attempts that Registered does not name are dropped: queued, running and Done") {
  AttemptBook book = Running();
  for (const ShardId p : {p0, p1}) book.OnPushAnswer(A(1), u0, p, PushAnswer::kApplied, {});
  book.Finish();
  for (std::uint64_t n = 2; n <= 5; ++n) book.OnGrant(Train(n, A(n)));
  book.Begin(A(2));
  const auto dropped = book.OnRegistered(Term(2), {A(4)});
  CHECK(dropped == std::vector<Attempt>{A(1), A(2), A(3), A(5)});
  CHECK(book.running() == nullptr);
  REQUIRE(book.NextToBegin() != nullptr);
  CHECK(book.NextToBegin()->attempt == A(4));
}

TEST_CASE("an adopted attempt that was dropped since the Hello is not held") {
  AttemptBook book = Running();
  book.OnPushAnswer(A(1), u0, p0, PushAnswer::kSuperseded, {});
  CHECK(book.OnRegistered(Term(2), {A(1)}).empty());
  CHECK_FALSE(book.Holds(A(1)));
}

TEST_CASE("an older map of the same job is ignored, one of another job is taken") {
  AttemptBook book;
  book.OnMap(Map(V(5)));
  book.OnMap(Map(V(4)));
  CHECK(book.map().version == V(5));
  book.OnMap(Map(V(1, 2)));
  CHECK(book.map().version == V(1, 2));
  book.OnMap(Map(V(9)), true);
  CHECK(book.map().version == V(9));
  book.OnMap(Map(V(2), JobUid(2)));
  CHECK(book.map().version == V(2));
}

TEST_CASE(
    "grants wait in order and within a bound; only attempts that have not begun are given back") {
  AttemptBook book;
  for (std::uint64_t n = 0; n < AttemptBook::kQueuedMax; ++n)
    REQUIRE(book.OnGrant(Train(n, A(n + 1))));
  CHECK_FALSE(book.OnGrant(Train(0, A(1))));
  CHECK_FALSE(book.OnGrant(Train(9, A(999999))));
  book.Begin(A(1));
  CHECK(book.OnRecall(A(1)).empty());
  CHECK(book.OnRecall(A(2)) == std::vector<Attempt>{A(2)});
  CHECK(book.queued() == AttemptBook::kQueuedMax - 2);
  CHECK(book.NextToBegin() == nullptr);
}

TEST_CASE(
    "urgent attempts precede those that have not begun, in the order of closures, but never the "
    "running one") {
  AttemptBook book;
  for (const std::uint64_t c : {20, 21, 22}) REQUIRE(book.OnGrant(Train(c, A(c))));
  book.Begin(A(20));
  for (const std::uint64_t c : {7, 30, 5}) {
    Work again = Train(c, A(100 + c));
    again.first = true;
    REQUIRE(book.OnGrant(again));
  }
  REQUIRE(book.OnGrant(Train(4, A(200))));
  std::vector<std::uint64_t> order;
  for (const AttemptBook::Held& held : book.HeldForHello()) {
    if (!held.begun) order.push_back(held.work.closure.value());
  }
  CHECK(order == std::vector<std::uint64_t>{5, 7, 30, 21, 22, 4});
  CHECK(book.running()->closure == ClosureId(20));
}

TEST_CASE("the end of a job drops all of its attempts") {
  AttemptBook book = Running();
  book.OnGrant(Train(1, A(2)));
  book.DropJob(JobUid(2));
  CHECK(book.running() != nullptr);
  book.DropJob(kJob);
  CHECK(book.HeldForHello().empty());
  CHECK(book.map().version == MapVersion{});
}

TEST_CASE("an attempt that touches nothing is done at once") {
  AttemptBook book;
  book.OnMap(Map(V(5)));
  book.OnGrant(Train(0, A(1)));
  book.Begin(A(1));
  book.Expect(u0, {});
  CHECK(book.MayFinish(true));
  CHECK(book.Finish().v1 == V(5));
}

}  // namespace
}  // namespace evergrad::worker

#include "coordinator/closures/update_account.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace evergrad::coordinator {
namespace {

using Verdict = UpdateAccount::Verdict;

// Returns a plan of two epochs. An epoch has 10 closures of 4 updates and one closure of 2, so the
// plan has 84 updates in 22 closures.
plan::Plan TwoEpochs() {
  plan::PlanSpec spec;
  spec.train_examples = 420;
  spec.batch_size = 10;
  spec.steps_per_closure = 4;
  spec.epochs = 2;
  return *plan::Plan::Create(spec);
}

UpdateAccount::Shard Dense(std::uint64_t updates) { return {0, "dense/kernel", true, updates}; }
UpdateAccount::Shard Slot(std::uint64_t updates) { return {1, "slot 0", false, updates}; }

struct Ends {
  IntervalSet succeeded = IntervalSet::Range(0, 22);
  IntervalSet dead, resumed;
  std::vector<IntervalSet> lost = std::vector<IntervalSet>(2);
};

UpdateAccount::Finding Compare(const UpdateAccount& account, const Ends& ends,
                               const std::vector<UpdateAccount::Shard>& shards) {
  return account.Compare(TwoEpochs(), {ends.succeeded, ends.dead, ends.resumed, ends.lost}, shards);
}

// Counts the reports of all closures of the plan from closure `from` on. In each closure one update
// does not touch slot 0.
UpdateAccount Counted(std::uint64_t from = 0) {
  UpdateAccount account;
  for (std::uint64_t c = from; c < 22; ++c)
    account.Count(TwoEpochs().Closure(ClosureId(c)).steps,
                  UpdateAccount::TouchedLess{{1, TwoEpochs().Closure(ClosureId(c)).steps - 1}});
  return account;
}

TEST_CASE(
    "a dense shard holds as many updates as the plan has, a partition of tables as many as the "
    "workers reported") {
  CHECK(Compare(Counted(), {}, {Dense(84), Slot(62)}).verdict == Verdict::kExact);
}

TEST_CASE(
    "a reported closure without updates is a difference that names shard, expected and found") {
  const auto finding = Compare(Counted(), {}, {Dense(80), Slot(62)});
  CHECK(finding.verdict == Verdict::kDifferent);
  CHECK(finding.difference ==
        "shard 0 (dense/kernel) does not hold the updates that the workers reported as done: "
        "expected=84 found=80");
}

TEST_CASE(
    "more updates than planned are a difference, too, in partitions of tables also fewer; further "
    "differing shards are counted") {
  CHECK(Compare(Counted(), {}, {Dense(85), Slot(62)}).verdict == Verdict::kDifferent);
  CHECK(Compare(Counted(), {}, {Dense(84), Slot(61)}).verdict == Verdict::kDifferent);
  CHECK(Compare(Counted(), {}, {Dense(84), Slot(63)}).verdict == Verdict::kDifferent);
  CHECK(Compare(Counted(), {}, {Dense(0), Slot(0)})
            .difference.ends_with("found=0; 1 more shard differs"));
  // If several shards differ, a dense shard is reported first, because its expected count follows
  // from the plan. The count of a slot follows only from the workers' reports.
  CHECK(
      Compare(Counted(), {}, {Slot(0), Dense(1)}).difference.starts_with("shard 0 (dense/kernel)"));
}

TEST_CASE("updates that were lost with a server may be missing, up to their counted number") {
  Ends ends;
  ends.lost[0].Add(3);
  ends.lost[0].Add(10);  // closure 10 has only 2 updates
  CHECK(Compare(Counted(), ends, {Dense(84)}).verdict == Verdict::kWithin);
  CHECK(Compare(Counted(), ends, {Dense(78)}).verdict == Verdict::kWithin);
  CHECK(Compare(Counted(), ends, {Dense(77)}).verdict == Verdict::kDifferent);
  // The slot has lost no closure, so a missing update in the slot is a difference.
  CHECK(Compare(Counted(), ends, {Dense(84), Slot(61)}).verdict == Verdict::kDifferent);
}

TEST_CASE("updates of closures that ended without success may be present, each at most once") {
  Ends ends;
  ends.succeeded.Remove(5);
  ends.dead.Add(5);
  const auto of = [&](std::uint64_t updates) {
    return Compare(Counted(), ends, {Dense(updates)}).verdict;
  };
  CHECK(of(79) == Verdict::kDifferent);
  CHECK(of(80) == Verdict::kWithin);
  CHECK(of(84) == Verdict::kWithin);
  CHECK(of(85) == Verdict::kDifferent);
}

TEST_CASE(
    "a job that resumes under the same plan has the plan's updates in its dense shards, whichever "
    "job made them") {
  Ends ends;
  ends.resumed = IntervalSet::Range(0, 11);
  UpdateAccount account = Counted(11);
  SECTION("from files that hold the resumed closures and nothing else") {
    account.TakeOver({std::vector<std::uint64_t>{42, 17}, /*whole=*/true, /*another_plan=*/false});
    CHECK(Compare(account, ends, {Dense(84), Slot(17 + 31)}).verdict == Verdict::kExact);
    CHECK(Compare(account, ends, {Dense(83), Slot(17 + 31)}).verdict == Verdict::kDifferent);
    CHECK(Compare(account, ends, {Dense(84), Slot(17 + 30)}).verdict == Verdict::kDifferent);
  }
  SECTION(
      "from files of different moments: some of what a slot held is done again and known by its "
      "ledger") {
    account.TakeOver({std::vector<std::uint64_t>{45, 19}, /*whole=*/false, /*another_plan=*/false});
    CHECK(Compare(account, ends, {Dense(84)}).verdict == Verdict::kExact);
    CHECK(Compare(account, ends, {Dense(84), Slot(31)}).verdict == Verdict::kWithin);
    CHECK(Compare(account, ends, {Dense(84), Slot(30)}).verdict == Verdict::kDifferent);
    CHECK(Compare(account, ends, {Dense(84), Slot(50)}).verdict == Verdict::kWithin);
    CHECK(Compare(account, ends, {Dense(84), Slot(51)}).verdict == Verdict::kDifferent);
  }
  SECTION("from files that the coordinator cannot see") {
    account.TakeOver({std::nullopt, false, /*another_plan=*/false});
    CHECK(Compare(account, ends, {Dense(84)}).verdict == Verdict::kExact);
    CHECK(Compare(account, ends, {Dense(83)}).verdict == Verdict::kDifferent);
    CHECK(Compare(account, ends, {Dense(84), Slot(30)}).verdict == Verdict::kDifferent);
    CHECK(Compare(account, ends, {Dense(84), Slot(3000)}).verdict == Verdict::kWithin);
  }
}

TEST_CASE(
    "a job that resumes under another plan has the updates of its files and those of its own "
    "closures") {
  Ends ends;
  ends.resumed = IntervalSet::Range(0, 11);
  UpdateAccount account = Counted(11);
  account.TakeOver({std::vector<std::uint64_t>{1000, 500}, /*whole=*/true, /*another_plan=*/true});
  CHECK(Compare(account, ends, {Dense(1042), Slot(531)}).verdict == Verdict::kExact);
  CHECK(Compare(account, ends, {Dense(1041), Slot(531)}).verdict == Verdict::kDifferent);
  account.TakeOver({std::nullopt, true, /*another_plan=*/true});
  CHECK(Compare(account, ends, {Dense(1041), Slot(531)}).verdict == Verdict::kWithin);
  CHECK(Compare(account, ends, {Dense(41), Slot(531)}).verdict == Verdict::kDifferent);
}

TEST_CASE(
    "if a worker of an older build did not report, partitions of tables are not compared, but "
    "dense shards are") {
  UpdateAccount account = Counted();
  account.Count(4, std::nullopt);
  CHECK(Compare(account, {}, {Dense(84), Slot(5)}).verdict == Verdict::kWithin);
  CHECK(Compare(account, {}, {Dense(83), Slot(5)}).verdict == Verdict::kDifferent);
}

TEST_CASE("a worker's report about the shards that a closure touches is checked") {
  const auto check = [](const UpdateAccount::TouchedLess& less) {
    return UpdateAccount::Check(less, 3, 4);
  };
  CHECK(check({}).ok());
  CHECK(check({{0, 0}, {2, 3}}).ok());
  CHECK_FALSE(check({{3, 0}}).ok());
  CHECK_FALSE(check({{1, 4}}).ok());
  CHECK_FALSE(check({{1, 0}, {1, 0}}).ok());
  CHECK_FALSE(check({{2, 0}, {1, 0}}).ok());
}

TEST_CASE("the account is restored from its journaled form") {
  UpdateAccount account = Counted(), again;
  account.TakeOver({std::vector<std::uint64_t>{1000, 500}, true, true});
  again.Restore(account.touched_less(), account.unreported(), account.before());
  Ends ends;
  CHECK(Compare(again, ends, {Dense(1084), Slot(562)}).verdict == Verdict::kExact);
}

}  // namespace
}  // namespace evergrad::coordinator

// Each rule of LEDGER.md left out must be seen, and seen as what it breaks: a check that cannot fail proves nothing.
#include <catch2/catch.hpp>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/simulation/cluster.h"
#include "tests/simulation/ground_truth.h"

namespace evergrad::simulation {
namespace {

using coordinator::ClosureBook;
using coordinator::MemoryStateStore;
using fault::Mutant;
using ps_server::PushCode;

// What the first seeds that show a violation show, one after another: a margin, so that a change of the walk does not lose the last of them.
constexpr int kMargin = 3;
std::vector<std::string> Violations(Mutant mutant, std::uint64_t seeds_max) {
  std::vector<std::string> seen;
  for (std::uint64_t seed = 0; seed < seeds_max && seen.size() < kMargin; ++seed) {
    const WalkResult result = Walk(WalkOptions::FromSeed(seed, mutant));
    if (!result.violation.empty()) seen.push_back(result.violation);
  }
  return seen;
}

void Caught(Mutant mutant, std::uint64_t seeds_max, std::initializer_list<const char*> as) {
  const std::vector<std::string> violations = Violations(mutant, seeds_max);
  CHECK(violations.size() == kMargin);
  for (const std::string& violation : violations) {
    INFO(violation);
    CHECK(std::any_of(as.begin(), as.end(), [&](const char* prefix) { return violation.starts_with(prefix); }));
  }
}

TEST_CASE("ledger_off is caught") { Caught(Mutant::kLedgerOff, 20, {"I1 applied twice"}); }
TEST_CASE("watermark_only is caught") { Caught(Mutant::kWatermarkOnly, 20, {"I3 done but missing", "I7", "29"}); }
TEST_CASE("no_todo is caught") { Caught(Mutant::kNoTodo, 50, {"I3 done but missing"}); }
TEST_CASE("done_ignores_V0 is caught") { Caught(Mutant::kDoneIgnoresV0, 50, {"I3 done but missing"}); }
TEST_CASE("V0_at_end is caught") { Caught(Mutant::kV0AtEnd, 50, {"I3 done but missing"}); }
TEST_CASE("close_ignores_todo is caught") { Caught(Mutant::kCloseIgnoresTodo, 50, {"I3 done but missing"}); }
TEST_CASE("done_before_settled is caught") { Caught(Mutant::kDoneBeforeSettled, 20, {"I3 done but missing", "29"}); }
TEST_CASE("no_epoch_check is caught") { Caught(Mutant::kNoEpochCheck, 100, {"I5 two processes", "I3"}); }
TEST_CASE("register_one_way is caught") { Caught(Mutant::kRegisterOneWay, 50, {"I8 not quiet"}); }
TEST_CASE("no_attempt_fence is caught by I9") { Caught(Mutant::kNoAttemptFence, 200, {"I9 a lower attempt was applied"}); }
TEST_CASE("skip_applies is caught") { Caught(Mutant::kSkipApplies, 20, {"I2"}); }
TEST_CASE("skip_leaves_no_bit is caught") { Caught(Mutant::kSkipLeavesNoBit, 20, {"I2 an applied update is not in the ledger"}); }
TEST_CASE("seal_admits is caught") { Caught(Mutant::kSealAdmits, 500, {"20a a sealed shard took a push"}); }
TEST_CASE("seal_enters_refused is caught") { Caught(Mutant::kSealEntersRefused, 500, {"20a what a sealed shard refused is in its ledger"}); }
TEST_CASE("snapshot_loses_open is caught") { Caught(Mutant::kSnapshotLosesOpen, 20, {"I2 the ledger and the state disagree"}); }
TEST_CASE("term_ignores_tasks is caught") { Caught(Mutant::kTermIgnoresTasks, 1000, {"I4 a term is taken twice"}); }
TEST_CASE("no_begin_anew is caught") { Caught(Mutant::kNoBeginAnew, 100, {"I4 the term fell for a task"}); }
TEST_CASE("eval_before_todo_empty is caught") { Caught(Mutant::kEvalBeforeTodoEmpty, 200, {"29 an evaluation read values without an update"}); }
TEST_CASE("eval_survives_rollback is caught") { Caught(Mutant::kEvalSurvivesRollback, 500, {"29 an evaluation read"}); }

// A walk meets this once in some thousand seeds, so it is played: shard 0 went from server x, which is only cut off, to y; the worker's
// push went to y; the coordinator died, a tear took the record of that move, and y died. Returns whether x lacks the update although
// the coordinator believes that all is done.
bool LosesWhatTheJournalForgot(Mutant mutant) {
  constexpr JobUid job{1};
  const ClosureBook::Options options{1, 1, 4, mutant};
  MemoryStateStore store({.jobs_max = 1, .torn_max = 4});
  const ShardModel model("counting", 0);
  const auto push = [&](HeldState& held, Attempt attempt) {
    std::array<float, kElementsMax> gradient{};
    model.Gradient(0, 0, attempt, gradient.data());
    ps_server::Push p;
    p.epoch = held.shard->epoch();
    p.closure = ClosureId(0);
    p.update = UpdateIndex(0);
    p.attempt = attempt;
    p.rows = model.elements();
    p.payload = std::as_bytes(std::span(gradient.data(), model.elements()));
    return held.shard->Apply(p).code;
  };
  const auto commit = [&](const coordinator::Record& record) { REQUIRE(store.Commit(job, record).ok()); };
  const auto map = [&](const ClosureBook& book) {
    worker::ShardMap m{book.durable().version, {}, job};
    for (const auto& owner : book.durable().map) m.shards.push_back({owner.epoch, owner.start, owner.server});
    return m;
  };
  worker::AttemptBook worker;

  REQUIRE(store.CommitTerm(Term{1}).ok());
  ClosureBook first(options, {});
  commit(first.BeginLife(Term{1}));
  first.CloseWindow();
  ClosureBook::MapChange change = first.Rollback(ShardId(0), "x");
  commit(change.record);
  const auto x = HeldState::FromSeed(model, change.assigns[0].epoch, change.assigns[0].start, {}, mutant);
  change = first.Rollback(ShardId(0), "y");
  commit(change.record);
  const auto y = HeldState::FromSeed(model, change.assigns[0].epoch, change.assigns[0].start, {}, mutant);
  const auto granted = first.NextGrant(TaskId(1));
  REQUIRE(granted.has_value());
  worker.OnMap(map(first));
  REQUIRE(worker.OnGrant({job, granted->closure, granted->attempt}));
  worker.Begin(granted->attempt);
  worker.Expect(UpdateIndex(0), {ShardId(0)});
  worker.OnPushAnswer(granted->attempt, UpdateIndex(0), ShardId(0),
                      push(*y, granted->attempt) == PushCode::kApplied ? worker::PushAnswer::kApplied : worker::PushAnswer::kInvalid, {});
  REQUIRE(worker.AllSettled());
  const worker::DoneReport done = worker.Finish();

  REQUIRE(store.TearTail(1) == 1);
  REQUIRE(store.CommitTerm(Term{2}).ok());
  ClosureBook second(options, *store.Load(job));
  commit(second.BeginLife(Term{2}));
  commit(second.RegisterServer("x", {{ShardId(0), x->shard->epoch(), x->shard->start(), {}, {}}}).change.record);
  second.CloseWindow();
  second.RegisterWorker(TaskId(2), {{done.work.closure, done.work.attempt, true, {}, done.v1}});
  second.OnDone(done.work.closure, done.work.attempt, done.v0, done.v1);
  if (const auto again = second.NextGrant(TaskId(2))) {
    CHECK(push(*x, again->attempt) == PushCode::kApplied);
    second.OnDone(again->closure, again->attempt, second.durable().version, second.durable().version);
  }
  CHECK(second.Quiet());
  return x->shard->updates_applied() == 0;
}

TEST_CASE("unknown_V_ok loses an update under a torn journal, and the rule does not") {
  CHECK(LosesWhatTheJournalForgot(Mutant::kUnknownVOk));
  CHECK_FALSE(LosesWhatTheJournalForgot(Mutant::kNone));
}

TEST_CASE("a seed is a walk: replayed, it gives the same counts") {
  for (const std::uint64_t seed : {3u, 4u, 7u}) {
    const WalkResult first = Walk(WalkOptions::FromSeed(seed)), again = Walk(WalkOptions::FromSeed(seed));
    CHECK(first.violation == "");
    CHECK(first.events == again.events);
    CHECK(first.counts == again.counts);
  }
}

TEST_CASE("the walks meet every fault and every answer") {
  std::set<std::string> met;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const WalkResult result = Walk(WalkOptions::FromSeed(seed));
    INFO("seed " << seed);
    CHECK(result.violation == "");
    for (const auto& [what, n] : result.counts) met.insert(what);
  }
  for (const char* what : {"applied",
                           "attempt superseded",
                           "begun anew",
                           "busy",
                           "call doubled",
                           "call lost",
                           "closure cancelled",
                           "coordinator killed",
                           "duplicate",
                           "ended early",
                           "evaluation",
                           "evaluation void",
                           "foreign coordinator",
                           "journal from a backup",
                           "journal torn",
                           "move",
                           "older snapshot",
                           "pull unchanged",
                           "refused by a sealed shard",
                           "repair failed",
                           "repair granted",
                           "rollback",
                           "rolled back to the seed",
                           "sealed",
                           "server doubled",
                           "server killed",
                           "session cut",
                           "shard not held",
                           "silent owner unmapped",
                           "skip recorded",
                           "snapshot",
                           "worker killed"}) {
    INFO(what);
    CHECK(met.contains(what));
  }
}

}  // namespace
}  // namespace evergrad::simulation

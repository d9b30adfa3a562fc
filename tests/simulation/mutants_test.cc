// Each test leaves out one rule of LEDGER.md. A walk must notice this, and must report the rule
// that is broken. Without these tests, the checks of the walks might be unable to fail.
#include <catch2/catch.hpp>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/plan/plan.h"
#include "coordinator/closures/term_rule.h"
#include "coordinator/closures/update_account.h"
#include "tests/mutants/mutant.h"
#include "tests/simulation/cluster.h"
#include "tests/simulation/ground_truth.h"

namespace evergrad::simulation {
namespace {

using coordinator::ClosureBook;
using coordinator::DurableState;
using coordinator::MemoryStateStore;
using mutants::Activated;
using mutants::Mutant;
using ps_server::PushCode;

// Returns the first kMargin violations of a mutant, in the order of seeds. Several are required. If
// there were only one, a change of the walk could make it disappear.
constexpr int kMargin = 3;
std::vector<std::string> Violations(Mutant mutant, std::uint64_t seeds_max) {
  const Activated active(mutant);
  std::vector<std::string> seen;
  for (std::uint64_t seed = 0; seed < seeds_max && seen.size() < kMargin; ++seed) {
    const WalkResult result = Walk(WalkOptions::FromSeed(seed));
    if (!result.violation.empty()) seen.push_back(result.violation);
  }
  return seen;
}

void Caught(Mutant mutant, std::uint64_t seeds_max, std::initializer_list<const char*> as) {
  const std::vector<std::string> violations = Violations(mutant, seeds_max);
  CHECK(violations.size() == kMargin);
  for (const std::string& violation : violations) {
    INFO(violation);
    CHECK(std::any_of(as.begin(), as.end(),
                      [&](const char* prefix) { return violation.starts_with(prefix); }));
  }
}

TEST_CASE("ledger_off is caught") { Caught(Mutant::kLedgerOff, 20, {"I1 applied twice"}); }
TEST_CASE("watermark_only is caught") {
  Caught(Mutant::kWatermarkOnly, 20, {"I3 done but missing", "I7", "29"});
}
TEST_CASE("no_todo is caught") { Caught(Mutant::kNoTodo, 50, {"I3 done but missing"}); }
TEST_CASE("done_ignores_V0 is caught") {
  Caught(Mutant::kDoneIgnoresV0, 50, {"I3 done but missing"});
}
TEST_CASE("V0_at_end is caught") { Caught(Mutant::kV0AtEnd, 50, {"I3 done but missing"}); }
TEST_CASE("close_ignores_todo is caught") {
  Caught(Mutant::kCloseIgnoresTodo, 50, {"I3 done but missing"});
}
TEST_CASE("done_before_settled is caught") {
  Caught(Mutant::kDoneBeforeSettled, 20, {"I3 done but missing", "29"});
}
TEST_CASE("no_epoch_check is caught") {
  Caught(Mutant::kNoEpochCheck, 100, {"I5 two processes", "I3"});
}
TEST_CASE("register_one_way is caught") { Caught(Mutant::kRegisterOneWay, 50, {"I8 not quiet"}); }
TEST_CASE("no_attempt_fence is caught by I9") {
  Caught(Mutant::kNoAttemptFence, 200, {"I9 a lower attempt was applied"});
}
TEST_CASE("skip_applies is caught") {
  Caught(Mutant::kSkipApplies, 20, {"13 a SKIP moved vlsn", "I2"});
}
TEST_CASE("skip_leaves_no_bit is caught") {
  Caught(Mutant::kSkipLeavesNoBit, 20, {"I2 an applied update is not in the ledger"});
}
TEST_CASE("seal_admits is caught") {
  Caught(Mutant::kSealAdmits, 500, {"20a a sealed shard took a push"});
}
TEST_CASE("seal_enters_refused is caught") {
  Caught(Mutant::kSealEntersRefused, 500,
         {"20a what a sealed shard refused is in its ledger",
          "I10 a push that its sender was not granted"});
}
TEST_CASE("snapshot_loses_open is caught") {
  Caught(Mutant::kSnapshotLosesOpen, 20, {"I2 the ledger and the state disagree"});
}
TEST_CASE("term_ignores_tasks is caught") {
  Caught(Mutant::kTermIgnoresTasks, 1000, {"I4 a term is taken twice"});
}
TEST_CASE("no_begin_anew is caught") {
  Caught(Mutant::kNoBeginAnew, 100, {"I4 the term fell for a task"});
}
TEST_CASE("lost_job_dropped is caught") {
  Caught(Mutant::kLostJobDropped, 200,
         {"18a a shard of a job that the journal has lost is dropped"});
}
TEST_CASE("eval_before_todo_empty is caught") {
  Caught(Mutant::kEvalBeforeTodoEmpty, 200, {"29 an evaluation read values without an update"});
}
TEST_CASE("eval_survives_rollback is caught") {
  Caught(Mutant::kEvalSurvivesRollback, 500, {"29 an evaluation read"});
}

// --- rules of a shard
TEST_CASE("refused_admits is caught") {
  Caught(Mutant::kRefusedAdmits, 100, {"20 applied after", "I1", "I6 open[c] is kept"});
}
TEST_CASE("duplicate_lowers_no_bar is caught") {
  Caught(Mutant::kDuplicateLowersNoBar, 300, {"I9 a lower attempt was applied"});
}
TEST_CASE("refused_push_leaves_bit is caught") {
  Caught(Mutant::kRefusedPushLeavesBit, 50,
         {"I2 the ledger and the state disagree", "I3", "27 a shard changed",
          "11 a push over the budget is in the ledger"});
}
TEST_CASE("vlsn_stays is caught") {
  Caught(Mutant::kVlsnStays, 20, {"13 a pull said unchanged, but values differ"});
}
TEST_CASE("unchanged_by_vlsn is caught") {
  Caught(Mutant::kUnchangedByVlsn, 600, {"13 a pull said unchanged, but values differ"});
}
TEST_CASE("close_leaves_lsn is caught") {
  Caught(Mutant::kCloseLeavesLsn, 50, {"27 a shard changed and its lsn did not", "27 one name"});
}
TEST_CASE("open_not_freed is caught") { Caught(Mutant::kOpenNotFreed, 20, {"I6 open[c] is kept"}); }
TEST_CASE("prune is caught") {
  Caught(Mutant::kPrune, 20, {"I2 the ledger and the state disagree", "I1"});
}
TEST_CASE("done_merges_holes is caught") {
  Caught(Mutant::kDoneMergesHoles, 20, {"I3 done but missing", "I6 open[c] is kept"});
}
TEST_CASE("ledger_not_in_snapshot is caught") {
  Caught(Mutant::kLedgerNotInSnapshot, 20,
         {"I2 the ledger and the state disagree", "27 a shard changed"});
}
TEST_CASE("cut_in_two_turns is caught") {
  Caught(Mutant::kCutInTwoTurns, 50, {"I2 the ledger and the state disagree", "27"});
}
TEST_CASE("reported_before_durable is caught") {
  Caught(Mutant::kReportedBeforeDurable, 50,
         {"27 a manifest names a file that is not there", "27 the journal"});
}
TEST_CASE("source_goes_on is caught") {
  Caught(Mutant::kSourceGoesOn, 50, {"I3", "I4 lsn fell", "I8"});
}

TEST_CASE("half_admitted is caught") {
  Caught(Mutant::kHalfAdmitted, 50, {"I2 values differ", "I2 digest"});
}
TEST_CASE("unproved_admits is caught: a push that nobody was granted changes a shard") {
  Caught(Mutant::kUnprovedAdmits, 20, {"I10"});
}
TEST_CASE(
    "unproved_raises_bar is caught: a push without a proof raises the attempt of an open closure") {
  Caught(Mutant::kUnprovedRaisesBar, 20, {"I10"});
}
TEST_CASE("proof_of_any_closure is caught: the proof of one closure serves for another") {
  Caught(Mutant::kProofOfAnyClosure, 20, {"I10"});
}
TEST_CASE("proof_of_any_attempt is caught: the proof of one attempt serves for a higher one") {
  Caught(Mutant::kProofOfAnyAttempt, 20, {"I10"});
}
TEST_CASE("proof_of_any_worker is caught: the proof of one worker serves another") {
  Caught(Mutant::kProofOfAnyWorker, 20, {"I10"});
}
TEST_CASE(
    "key_of_each_life is caught: an attempt in hand is refused after a restart of the "
    "coordinator") {
  Caught(Mutant::kKeyOfEachLife, 50,
         {"a good push was refused as invalid", "26 a granted attempt is not believed"});
}
TEST_CASE("adopts_unproved is caught: a Hello takes over what its sender was not granted") {
  Caught(Mutant::kAdoptsUnproved, 20, {"I10 an attempt that nobody granted was adopted"});
}
TEST_CASE("rows_after_cut is caught") { Caught(Mutant::kRowsAfterCut, 100, {"I2 values differ"}); }

// --- rules of a worker
TEST_CASE("stale_settles is caught") {
  Caught(Mutant::kStaleSettles, 20, {"I3 done but missing", "29"});
}
TEST_CASE("keeps_unnamed is caught") { Caught(Mutant::kKeepsUnnamed, 300, {"I8 not quiet"}); }

// --- rules of the coordinator
TEST_CASE("term_not_synced is caught") {
  Caught(Mutant::kTermNotSynced, 30,
         {"I4 a term is taken twice", "the journal does not give back"});
}
TEST_CASE("any_attempt_done is caught") {
  Caught(Mutant::kAnyAttemptDone, 500, {"I3 done but missing", "29"});
}
TEST_CASE("repair_counts is caught") { Caught(Mutant::kRepairCounts, 30, {"P2 metrics counted"}); }
TEST_CASE("dead_may_succeed is caught") {
  Caught(Mutant::kDeadMaySucceed, 400, {"P2 a closure ended twice"});
}
TEST_CASE("cancel_succeeded is caught") {
  Caught(Mutant::kCancelSucceeded, 200, {"P2 a closure ended twice"});
}
TEST_CASE("told_at_once is caught") {
  Caught(Mutant::kToldAtOnce, 100, {"20 applied after the user was told of the cancel"});
}
TEST_CASE("failed_repair_forgotten is caught") {
  Caught(Mutant::kFailedRepairForgotten, 200, {"I3 done but missing"});
}
TEST_CASE("rollback_keeps_epoch is caught") {
  Caught(Mutant::kRollbackKeepsEpoch, 20, {"I5 two processes", "I3", "I4", "5 a move"});
}
TEST_CASE("rollback_keeps_start is caught") {
  Caught(Mutant::kRollbackKeepsStart, 20, {"I3 done but missing", "I4 lsn fell"});
}
TEST_CASE("todo_ignores_lost is caught") {
  Caught(Mutant::kTodoIgnoresLost, 200, {"I8 not quiet"});
}
TEST_CASE("assign_without_refused is caught") {
  Caught(Mutant::kAssignWithoutRefused, 800, {"20 applied after the user was told of the cancel"});
}
TEST_CASE("move_keeps_epoch is caught") {
  Caught(Mutant::kMoveKeepsEpoch, 20, {"I5 two processes"});
}
TEST_CASE("move_changes_start is caught") {
  Caught(Mutant::kMoveChangesStart, 20, {"5 a move changed start"});
}
TEST_CASE("stopped_is_held is caught") {
  Caught(Mutant::kStoppedIsHeld, 1500, {"I4 lsn fell within one start"});
}
TEST_CASE("grants_without_bound is caught") {
  Caught(Mutant::kGrantsWithoutBound, 300, {"I6 more closures are open"});
}
TEST_CASE("adopt_unneeded is caught") {
  Caught(Mutant::kAdoptUnneeded, 300, {"P2 metrics counted", "P2 a closure ended twice"});
}
TEST_CASE("no_drop is caught") { Caught(Mutant::kNoDrop, 800, {"I8 not quiet"}); }
TEST_CASE("resume_keeps_attempts is caught") {
  Caught(Mutant::kResumeKeepsAttempts, 400, {"I8 not quiet", "I9"});
}
TEST_CASE("resume_forgets_open is caught") {
  Caught(Mutant::kResumeForgetsOpen, 100, {"I2 the ledger and the state disagree"});
}
TEST_CASE("deletes_named is caught") {
  Caught(Mutant::kDeletesNamed, 30, {"30 a file is deleted that a kept manifest names"});
}

TEST_CASE("silent_owner_kept is caught") {
  Caught(Mutant::kSilentOwnerKept, 3000, {"20a applied after the user was told of the end"});
}
TEST_CASE("ack_before_commit is caught") {
  Caught(Mutant::kAckBeforeCommit, 1000, {"P2 metrics counted", "20 applied after"});
}
TEST_CASE("close_never_whole_again is caught") {
  Caught(Mutant::kCloseNeverWholeAgain, 3000, {"I8 not quiet"});
}
TEST_CASE("deletes_before_durable is caught") {
  Caught(Mutant::kDeletesBeforeDurable, 3000, {"27 the journal names a file that is not there"});
}
TEST_CASE("adopt_keeps_todo is caught") {
  Caught(Mutant::kAdoptKeepsTodo, 3000, {"I3 done but missing", "29"});
}

// Walks meet the following mutants too rarely or never. Each is therefore tested with a fixed
// sequence of calls. Played has the parts of a cluster with one closure and one shard.
struct Played {
  static constexpr JobUid kJob{1};
  static ClosureBook::Options Options() { return {1, 1, 4}; }
  static PushCode PushOne(const ShardModel& model, HeldState& held, Attempt attempt) {
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
  }
};

// Line 38: a worker reports Done for the only closure after it has pushed `updates_pushed` of the
// four updates. An honest worker has pushed all of them. Returns whether the coordinator lets the
// job end.
bool JobMayEnd(Mutant mutant, std::uint32_t updates_pushed) {
  const Activated active(mutant);
  const ShardModel model("counting", 0);
  ClosureBook book(Played::Options(), DurableState{});
  book.BeginLife(Term{1});
  book.CloseWindow();
  const auto change = book.Rollback(ShardId(0), "x");
  const auto held =
      HeldState::FromSeed(model, change.assigns.front().epoch, change.assigns.front().start, {});
  const auto granted = book.NextGrant(TaskId(1));
  worker::AttemptBook lying;
  lying.OnMap(
      {book.durable().version, {{held->shard->epoch(), held->shard->start(), "x"}}, Played::kJob});
  lying.OnGrant({Played::kJob, granted->closure, granted->attempt});
  lying.Begin(granted->attempt);
  for (std::uint32_t u = 0; u < kUpdates; ++u) lying.Expect(UpdateIndex(u), {ShardId(0)});
  for (std::uint32_t u = 0; u < updates_pushed; ++u) {
    ps_server::Push push;
    std::array<float, kElementsMax> gradient{};
    model.Gradient(0, u, granted->attempt, gradient.data());
    push.epoch = held->shard->epoch();
    push.closure = granted->closure;
    push.update = UpdateIndex(u);
    push.attempt = granted->attempt;
    push.rows = model.elements();
    push.payload = std::as_bytes(std::span(gradient.data(), model.elements()));
    CHECK(held->shard->Apply(push).code == PushCode::kApplied);
  }
  // The worker claims that all updates have been answered by their shards.
  CHECK(book.OnDone(granted->closure, granted->attempt, book.durable().version,
                    book.durable().version)
            .acknowledged);
  coordinator::UpdateAccount account;
  account.Count(kUpdates, lying.TouchedLess());
  plan::PlanSpec spec;
  spec.train_examples = spec.steps_per_closure = kUpdates;
  const DurableState& state = book.durable();
  const auto finding =
      account.Compare(*plan::Plan::Create(spec), {state.succeeded, state.dead, {}, state.lost},
                      {{0, "the only shard", true, held->shard->updates_applied()}});
  return mutants::IsActive(Mutant::kEndsUncompared) ||
         finding.verdict != coordinator::UpdateAccount::Verdict::kDifferent;
}

TEST_CASE(
    "ends_uncompared is caught: a worker that answers Done without working does not make a job "
    "succeed") {
  CHECK(JobMayEnd(Mutant::kNone, kUpdates));
  CHECK_FALSE(JobMayEnd(Mutant::kNone, 0));
  CHECK_FALSE(JobMayEnd(Mutant::kNone, kUpdates - 1));
  CHECK(JobMayEnd(Mutant::kEndsUncompared, 0));
}

// Line 18a: a job has ended and was removed from the journal, but a server does not know that the
// job has ended. Returns whether the coordinator refuses to start. A walk meets this case once in
// some thousand seeds.
bool RefusesWhatItRemoved(Mutant mutant) {
  const Activated active(mutant);
  MemoryStateStore store({.jobs_max = 2});
  REQUIRE(store.Commit(Played::kJob, coordinator::Record{}).ok());
  REQUIRE(store.Remove(Played::kJob).ok());
  return coordinator::JournalHasLost(
      {.journaled = true,
       .known = store.Load(Played::kJob).ok(),
       .removed = store.Removed(Played::kJob) && !mutants::IsActive(Mutant::kRemovedIsLost)});
}
TEST_CASE(
    "removed_is_lost keeps a coordinator from starting over a job that was removed on purpose, and "
    "the rule does not") {
  CHECK(RefusesWhatItRemoved(Mutant::kRemovedIsLost));
  CHECK_FALSE(RefusesWhatItRemoved(Mutant::kNone));
}

// Line 25: server x became the owner of a shard, and the journal lost the record of this. A worker
// then pushes to the owner before x. Either a life in between or this life, after its start-up
// window, had sent the worker there.
bool CountsWhatTheFormerOwnerTook(Mutant mutant, bool another_life) {
  const Activated active(mutant);
  ClosureBook::Options options = Played::Options();
  const ShardModel model("counting", 0);
  ClosureBook first(options, {});
  first.BeginLife(Term{1});
  first.CloseWindow();
  ClosureBook::MapChange change = first.Rollback(ShardId(0), "before");
  const auto before =
      HeldState::FromSeed(model, change.assigns[0].epoch, change.assigns[0].start, {});
  const DurableState torn = first.durable();
  change = first.Rollback(ShardId(0), "x");
  const auto x = HeldState::FromSeed(model, change.assigns[0].epoch, change.assigns[0].start, {});

  ClosureBook book(options, torn);
  book.BeginLife(Term{2});
  book.RegisterServer("before",
                      {{ShardId(0), before->shard->epoch(), before->shard->start(), {}, {}}});
  book.CloseWindow();
  const auto granted = book.NextGrant(TaskId(1));
  REQUIRE(granted);
  const MapVersion v = book.durable().version;  // the map with which the worker begins
  REQUIRE(Played::PushOne(model, *before, granted->attempt) == PushCode::kApplied);
  if (another_life) book.BeginLife(Term{3});
  book.RegisterServer("x", {{ShardId(0), x->shard->epoch(), x->shard->start(), {}, {}}});
  if (another_life) book.CloseWindow();
  book.RegisterWorker(TaskId(2), {{ClosureId(0), granted->attempt, true, {}, v}});
  book.OnDone(ClosureId(0), granted->attempt, v, v);
  return book.durable().map[0].server == "x" && book.Quiet() && x->shard->updates_applied() == 0;
}
TEST_CASE("adopt_outside_window loses an update under a torn journal, and the rule does not") {
  CHECK(CountsWhatTheFormerOwnerTook(Mutant::kAdoptOutsideWindow, false));
  CHECK_FALSE(CountsWhatTheFormerOwnerTook(Mutant::kNone, false));
}
TEST_CASE("adopt_of_any_life loses an update under a torn journal, and the rule does not") {
  CHECK(CountsWhatTheFormerOwnerTook(Mutant::kAdoptOfAnyLife, true));
  CHECK_FALSE(CountsWhatTheFormerOwnerTook(Mutant::kNone, true));
}

// Line 25: the journal lost its last three records. They were the cancellation of a closure, a file
// that refuses this closure, and the rollback of the shard to that file. A server is still loading
// the file.
bool GrantsWhatTheFileRefuses(Mutant mutant) {
  const Activated active(mutant);
  ClosureBook::Options options = Played::Options();
  ClosureBook first(options, {});
  first.BeginLife(Term{1});
  first.CloseWindow();
  first.Rollback(ShardId(0), "a");
  const DurableState torn = first.durable();
  first.Cancel(ClosureId(0));
  coordinator::Snapshot file;
  file.file = "file";
  file.epoch = first.durable().map[0].epoch;
  file.refused = {0};
  first.AddSnapshot(ShardId(0), file);
  const auto assign = first.Rollback(ShardId(0), "b").assigns.at(0);
  REQUIRE(assign.snapshot);

  ClosureBook second(options, torn);
  second.BeginLife(Term{2});
  second.RegisterServer("b", {{ShardId(0), assign.epoch, assign.start, {}, {}, true}});
  second.CloseWindow();
  return second.durable().map[0].server == "b" && second.NextGrant(TaskId(1)).has_value();
}
TEST_CASE("loading_adopted grants without end what the file refuses, and the rule does not") {
  CHECK(GrantsWhatTheFileRefuses(Mutant::kLoadingAdopted));
  CHECK_FALSE(GrantsWhatTheFileRefuses(Mutant::kNone));
}

// Line 25: like the case before, but the shard has been loaded, and the server reports which
// closures the shard refuses.
bool GrantsWhatAShardRefuses(Mutant mutant) {
  const Activated active(mutant);
  ClosureBook book(Played::Options(), {});
  book.BeginLife(Term{1});
  book.CloseWindow();
  const auto assign = book.Rollback(ShardId(0), "a").assigns.at(0);
  book.RegisterServer("a", {{ShardId(0), assign.epoch, assign.start, {}, {0}}});
  return book.NextGrant(TaskId(1)).has_value();
}
TEST_CASE("unknown_refused_lives grants what its shard refuses, and the rule does not") {
  CHECK(GrantsWhatAShardRefuses(Mutant::kUnknownRefusedLives));
  CHECK_FALSE(GrantsWhatAShardRefuses(Mutant::kNone));
}

// Line 24: a Close may arrive after the Assign that makes it obsolete. A walk never delivers them
// in this order, because messages of a session arrive in order.
bool TakesAnOldClose(Mutant mutant) {
  const Activated active(mutant);
  const ShardModel model("counting", 0);
  const auto held = HeldState::FromSeed(model, ShardEpoch{1, 5}, MapVersion{1, 4}, {});
  held->shard->Close(ShardEpoch{1, 3}, MapVersion{1, 2}, {0}, {});
  return Played::PushOne(model, *held, Attempt{1, 1}) == PushCode::kDuplicate;
}
TEST_CASE("close_of_any_time loses an update, and the rule does not") {
  CHECK(TakesAnOldClose(Mutant::kCloseOfAnyTime));
  CHECK_FALSE(TakesAnOldClose(Mutant::kNone));
}

// Lines 27 and 30: the file of a former owner is reported after a file of the next owner.
bool GoesBackToALateFile(Mutant mutant) {
  const Activated active(mutant);
  ClosureBook book(Played::Options(), {});
  book.BeginLife(Term{1});
  book.CloseWindow();
  coordinator::Snapshot late, newer;
  late.file = "late";
  newer.file = "newer";
  late.epoch = book.Rollback(ShardId(0), "a").assigns.at(0).epoch;
  newer.epoch = book.Move(ShardId(0), late.epoch, "b").assigns.at(0).epoch;
  book.AddSnapshot(ShardId(0), newer);
  book.AddSnapshot(ShardId(0), late);
  return book.NewestSnapshot(ShardId(0))->file == "late";
}
TEST_CASE(
    "takes_late_file goes back to a file that a sweep may have deleted, and the rule does not") {
  CHECK(GoesBackToALateFile(Mutant::kTakesLateFile));
  CHECK_FALSE(GoesBackToALateFile(Mutant::kNone));
}

// Lines 24 and 28: the repair of a closure has failed permanently, and another job resumes from the
// files of this job.
bool ResumesWhatIsLostAsDone(Mutant mutant) {
  const Activated active(mutant);
  ClosureBook book(Played::Options(), {});
  book.BeginLife(Term{1});
  book.CloseWindow();
  book.Rollback(ShardId(0), "a");
  const auto granted = book.NextGrant(TaskId(1));
  REQUIRE(granted);
  const MapVersion v = book.durable().version;
  REQUIRE(book.OnDone(granted->closure, granted->attempt, v, v).acknowledged);
  book.Rollback(ShardId(0), "a");
  const auto repair = book.NextGrant(TaskId(1));
  REQUIRE(repair);
  REQUIRE_FALSE(book.FailRepair(repair->closure, repair->attempt).empty());
  const auto closes = book.MakeCloses(TaskId(9), "a");
  REQUIRE(closes.size() == 1);
  coordinator::Snapshot file;
  file.file = "file";
  file.done = closes[0].done;
  file.refused = closes[0].refused;
  ClosureBook next(Played::Options(), {});
  next.BeginLife(Term{1});
  next.ResumeFrom({file});
  return next.durable().succeeded.Contains(0);
}
TEST_CASE("close_holds_lost resumes what is lost as done, and the rule does not") {
  CHECK(ResumesWhatIsLostAsDone(Mutant::kCloseHoldsLost));
  CHECK_FALSE(ResumesWhatIsLostAsDone(Mutant::kNone));
}

// Lines 16 and 26 only save work; without them, nothing is lost. In this test a worker finishes a
// closure while it has no session with the coordinator.
bool RunsAgainWhatIsDone(Mutant mutant) {
  const Activated active(mutant);
  ClosureBook book(Played::Options(), {});
  book.BeginLife(Term{1});
  book.CloseWindow();
  book.Rollback(ShardId(0), "a");
  worker::AttemptBook worker;
  worker.OnMap({book.durable().version, {{}}, Played::kJob});
  const auto granted = book.NextGrant(TaskId(1));
  REQUIRE(granted);
  REQUIRE(worker.OnGrant({Played::kJob, granted->closure, granted->attempt}));
  worker.Begin(granted->attempt);
  worker.Finish();
  book.BeginLife(Term{2});
  book.CloseWindow();
  std::vector<ClosureBook::HeldAttempt> held;
  for (const auto& h : worker.HeldForHello())
    held.push_back({h.work.closure, h.work.attempt, h.work.all_targets, h.work.targets, h.v1});
  book.RegisterWorker(TaskId(2), held);
  for (const auto& done : worker.Unanswered())
    book.OnDone(done.work.closure, done.work.attempt, done.v0, done.v1);
  return book.NextGrant(TaskId(2)).has_value();
}
TEST_CASE("done_not_kept runs a closure again, and the rule does not") {
  CHECK(RunsAgainWhatIsDone(Mutant::kDoneNotKept));
  CHECK_FALSE(RunsAgainWhatIsDone(Mutant::kNone));
}

// Line 26: a worker whose lease had ended registers again while another worker runs its closure.
bool RefusesTheHigherAttempt(Mutant mutant) {
  const Activated active(mutant);
  ClosureBook book(Played::Options(), {});
  book.BeginLife(Term{1});
  book.CloseWindow();
  book.Rollback(ShardId(0), "a");
  const auto old = book.NextGrant(TaskId(1));
  REQUIRE(old);
  book.ReleaseWorker(TaskId(1));
  const auto now = book.NextGrant(TaskId(2));
  REQUIRE(now);
  const MapVersion v = book.durable().version;
  book.RegisterWorker(TaskId(3), {{old->closure, old->attempt, true, {}, v}});
  return !book.OnDone(now->closure, now->attempt, v, v).acknowledged;
}
TEST_CASE("adopt_older refuses the Done of the higher attempt, and the rule does not") {
  CHECK(RefusesTheHigherAttempt(Mutant::kAdoptOlder));
  CHECK_FALSE(RefusesTheHigherAttempt(Mutant::kNone));
}

// A walk meets this case once in some thousand seeds, so the test calls the classes in a fixed
// sequence. Shard 0 was moved from server x, which is only disconnected, to y. The worker's push
// went to y. The coordinator died, the journal lost the record of that move, and y died. Returns
// whether x lacks the update although the coordinator believes that all closures are done.
bool LosesWhatTheJournalForgot(Mutant mutant) {
  const Activated active(mutant);
  constexpr JobUid job{1};
  const ClosureBook::Options options{1, 1, 4};
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
  const auto commit = [&](const coordinator::Record& record) {
    REQUIRE(store.Commit(job, record).ok());
  };
  const auto map = [&](const ClosureBook& book) {
    worker::ShardMap m{book.durable().version, {}, job};
    for (const auto& owner : book.durable().map)
      m.shards.push_back({owner.epoch, owner.start, owner.server});
    return m;
  };
  worker::AttemptBook worker;

  REQUIRE(store.CommitTerm(Term{1}).ok());
  ClosureBook first(options, {});
  commit(first.BeginLife(Term{1}));
  first.CloseWindow();
  ClosureBook::MapChange change = first.Rollback(ShardId(0), "x");
  commit(change.record);
  const auto x = HeldState::FromSeed(model, change.assigns[0].epoch, change.assigns[0].start, {});
  change = first.Rollback(ShardId(0), "y");
  commit(change.record);
  const auto y = HeldState::FromSeed(model, change.assigns[0].epoch, change.assigns[0].start, {});
  const auto granted = first.NextGrant(TaskId(1));
  REQUIRE(granted.has_value());
  worker.OnMap(map(first));
  REQUIRE(worker.OnGrant({job, granted->closure, granted->attempt}));
  worker.Begin(granted->attempt);
  worker.Expect(UpdateIndex(0), {ShardId(0)});
  worker.OnPushAnswer(granted->attempt, UpdateIndex(0), ShardId(0),
                      push(*y, granted->attempt) == PushCode::kApplied
                          ? worker::PushAnswer::kApplied
                          : worker::PushAnswer::kInvalid,
                      {});
  REQUIRE(worker.AllSettled());
  const worker::DoneReport done = worker.Finish();

  REQUIRE(store.TearTail(1) == 1);
  REQUIRE(store.CommitTerm(Term{2}).ok());
  ClosureBook second(options, *store.Load(job));
  commit(second.BeginLife(Term{2}));
  commit(second.RegisterServer("x", {{ShardId(0), x->shard->epoch(), x->shard->start(), {}, {}}})
             .change.record);
  second.CloseWindow();
  second.RegisterWorker(TaskId(2), {{done.work.closure, done.work.attempt, true, {}, done.v1}});
  second.OnDone(done.work.closure, done.work.attempt, done.v0, done.v1);
  if (const auto again = second.NextGrant(TaskId(2))) {
    CHECK(push(*x, again->attempt) == PushCode::kApplied);
    second.OnDone(again->closure, again->attempt, second.durable().version,
                  second.durable().version);
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
    const WalkResult first = Walk(WalkOptions::FromSeed(seed)),
                     again = Walk(WalkOptions::FromSeed(seed));
    CHECK(first.violation == "");
    CHECK(first.events == again.events);
    CHECK(first.counts == again.counts);
  }
}

TEST_CASE("the walks meet every fault and every answer") {
  std::set<std::string> met;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    const WalkResult result = Walk(WalkOptions::FromSeed(seed));
    INFO("seed " << seed);
    CHECK(result.violation == "");
    for (const auto& [what, n] : result.counts) met.insert(what);
  }
  for (const char* what : {"applied",
                           "applied to an earlier job",
                           "attempt superseded",
                           "begun anew",
                           "broken push refused",
                           "busy",
                           "call doubled",
                           "call lost",
                           "closure cancelled",
                           "commits lost with the coordinator",
                           "coordinator killed",
                           "duplicate",
                           "ended early",
                           "evaluation",
                           "forged push refused",
                           "evaluation void",
                           "file damaged",
                           "file deleted",
                           "foreign coordinator",
                           "journal checkpoint",
                           "journal forgot a move",
                           "journal from a backup",
                           "journal torn",
                           "lost journal refused",
                           "manifest",
                           "manifest damaged",
                           "move",
                           "move begun again",
                           "over budget",
                           "pull unchanged",
                           "refused by a sealed shard",
                           "repair failed",
                           "repair granted",
                           "resumed after the end",
                           "resumed after the loss of the cluster",
                           "resumed from a file",
                           "rollback",
                           "rolled back to a file",
                           "rolled back to the seed",
                           "sealed",
                           "server doubled",
                           "server killed",
                           "session cut",
                           "shard not held",
                           "silent owner unmapped",
                           "skip recorded",
                           "snapshot",
                           "snapshot given up",
                           "snapshot of an unchanged shard",
                           "stopped by a former life",
                           "updates compared: exact",
                           "updates compared: within bounds",
                           "worker killed"}) {
    INFO(what);
    CHECK(met.contains(what));
  }
}

}  // namespace
}  // namespace evergrad::simulation

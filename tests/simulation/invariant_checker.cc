#include "tests/simulation/invariant_checker.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace evergrad::simulation {

using ps_server::PushCode;

void InvariantChecker::BeginJob(JobUid job) {
  job_ = job;
  end_told_ = false;
  answered_ = {};
  lsn_ = {};
}

void InvariantChecker::ResumeShard(std::uint32_t p, const ps_server::Ledger& ledger) {
  resumed_open_[p] = ledger.open().size();
  resumed_intervals_[p] = ledger.done().interval_count();
}

// ---------------------------------------------------------------- the coordinator

void InvariantChecker::BeginBook(const DurableState& state) { durable_ = committed_ = state; }

void InvariantChecker::CheckReplayed(const DurableState& state) {
  if (!walk_.options.torn && !(state == (walk_.options.gated ? durable_ : committed_)))
    walk_.Fail("the journal does not give back the state that made it");
}

void InvariantChecker::OnCommit(const DurableState& now) {
  const bool same_life = now.term == committed_.term;
  if (same_life || !walk_.options.torn) {
    if (now.term < committed_.term || now.version < committed_.version)
      walk_.Fail("I4 term or map version fell");
    for (std::uint32_t p = 0; p < kShards && p < committed_.map.size(); ++p) {
      if (now.map[p].epoch < committed_.map[p].epoch || now.map[p].start < committed_.map[p].start)
        walk_.Fail(absl::StrCat("I4 epoch or start fell: p=", p));
    }
    if (!now.succeeded.ContainsAll(committed_.succeeded) || !now.dead.ContainsAll(committed_.dead))
      walk_.Fail("P2 an ended closure came back");
  }
  if (!now.succeeded.Intersect(now.dead).empty()) walk_.Fail("P2 a closure ended twice");
  for (std::uint32_t p = 0; p < kShards; ++p) {
    if (!now.succeeded.ContainsAll(now.todo[p])) walk_.Fail("todo holds what has not succeeded");
    walk_.Largest("intervals of a todo", now.todo[p].interval_count());
  }
  walk_.Largest("intervals of succeeded", now.succeeded.interval_count());
  committed_ = now;
}

void InvariantChecker::OnDurable() {
  if (walk_.options.gated) durable_ = committed_;
}

void InvariantChecker::OnTermTaken(Term term) {
  if (term.value() <= newest_term_)
    walk_.Fail(absl::StrCat("I4 a term is taken twice: term=", term.value()));
  OnTermReported(term.value());
}

bool InvariantChecker::IsOwner(const std::string& identity, JobUid job, std::uint32_t p,
                               ShardEpoch epoch) const {
  return job == job_ && p < committed_.map.size() && committed_.map[p].server == identity &&
         committed_.map[p].epoch == epoch;
}

// ---------------------------------------------------------------- pushes

void InvariantChecker::OnPush(const ServedPush& served) {
  const Call& call = served.call;
  HeldState& held = served.held;
  const bool beyond = served.pushed.beyond_budget();
  const std::uint64_t c = call.closure.value();
  if (held.shard->lsn() < served.before.lsn) walk_.Fail("I4 lsn fell");
  if (beyond && served.code == PushCode::kApplied)
    walk_.Fail("11 a push beyond the budget was admitted");
  if (served.code == PushCode::kOverBudget) CheckOverBudget(served);
  if (served.sealed != nullptr && call.epoch == held.shard->epoch()) CheckSealed(served);
  if (served.code == PushCode::kApplied) {
    OnApplied(served);
  } else if (served.code == PushCode::kDuplicate) {
    walk_.Count("duplicate");
  } else if (served.code == PushCode::kInvalid && !served.pushed.push.defect.empty()) {
    walk_.Count("broken push refused");
  } else if (served.code == PushCode::kInvalid ||
             (served.code == PushCode::kOverBudget && !beyond)) {
    walk_.Fail("a good push was refused as invalid");
  }
  if (served.code == PushCode::kApplied ||
      (served.code == PushCode::kDuplicate && served.before.open))
    held.seen[c] = std::max(held.seen[c], call.attempt);
}

void InvariantChecker::CheckOverBudget(const ServedPush& served) {
  const HeldState& held = served.held;
  walk_.Count("push of two tables over the budget");
  if (held.shard->lsn() != served.before.lsn ||
      held.shard->ledger().Has(served.call.closure, served.pushed.push.update))
    walk_.Fail("11 a push over the budget is in the ledger");
  const ShardModel& model = walk_.models[served.call.p];
  walk_.Fail(held.CheckValues(model));
  if (walk_.random.Chance(0.1)) walk_.Fail(held.CheckReplay(model));
}

void InvariantChecker::CheckSealed(const ServedPush& served) {
  const ps_server::Shard& shard = *served.held.shard;
  const std::uint64_t c = served.call.closure.value();
  walk_.Count("refused by a sealed shard");
  // A shard that was stopped for a move answers STALE before it checks the rule of line 8. Like a
  // sealed shard, it accepts no push.
  if (served.code != PushCode::kRefused && !(shard.stopped() && served.code == PushCode::kStale))
    walk_.Fail(absl::StrCat("20a a sealed shard took a push: c=", c, " p=", served.call.p));
  if (!(*served.sealed == shard.ledger()))
    walk_.Fail(absl::StrCat("20a what a sealed shard refused is in its ledger: c=", c,
                            " p=", served.call.p));
}

void InvariantChecker::OnApplied(const ServedPush& served) {
  const Call& call = served.call;
  HeldState& held = served.held;
  const std::uint64_t c = call.closure.value();
  const bool skip = served.pushed.skip();
  const ShardModel& model = walk_.models[call.p];
  walk_.Count(skip ? "skip recorded" : "applied");
  if (skip && held.shard->vlsn() != served.before.vlsn) walk_.Fail("13 a SKIP moved vlsn");
  const bool owner = IsOwner(served.identity, held.job, call.p, held.shard->epoch());
  if (end_told_ && owner)
    walk_.Fail(
        absl::StrCat("20a applied after the user was told of the end: c=", c, " p=", call.p));
  walk_.Trace("server ", served.process, " p=", call.p, " applies c=", c, " u=", call.update,
              " attempt=", call.attempt.ToString(), " epoch=", call.epoch.ToString());
  if (skip) {
    held.FoldSkip(c, call.update, call.attempt);
  } else {
    held.Fold(model, c, call.update, call.attempt, served.pushed.gradient());
  }
  if (held.count[c * kUpdates + call.update] > 1)
    walk_.Fail(absl::StrCat("I1 applied twice: c=", c, " u=", call.update, " p=", call.p));
  if (call.attempt < held.seen[c])
    walk_.Fail(
        absl::StrCat("I9 a lower attempt was applied: c=", c, " u=", call.update, " p=", call.p));
  walk_.Fail(held.CheckValues(model));
  if (!held.shard->ledger().Has(call.closure, served.pushed.push.update))
    walk_.Fail("I2 an applied update is not in the ledger");
  CheckOneProcess(served);
  if (!owner) return;
  if (cancels_told_.Contains(c) && !walk_.options.torn)
    walk_.Fail(
        absl::StrCat("20 applied after the user was told of the cancel: c=", c, " p=", call.p));
  CheckBounds(held, call.p);
}

void InvariantChecker::CheckOneProcess(const ServedPush& served) {
  const Call& call = served.call;
  if (served.held.job != job_) {  // the job has ended, and the server does not know it
    walk_.Count("applied to an earlier job");
    return;
  }
  auto& answered = answered_[call.p];
  const auto it = std::find_if(answered.rbegin(), answered.rend(),
                               [&](const auto& a) { return a.first == call.epoch; });
  if (it == answered.rend()) {
    answered.emplace_back(call.epoch, served.process);
  } else if (it->second != served.process) {
    walk_.Fail(absl::StrCat("I5 two processes answered APPLIED: p=", call.p,
                            " epoch=", call.epoch.ToString()));
  }
}

// ---------------------------------------------------------------- states

void InvariantChecker::CheckState(const HeldState& state, std::uint32_t p, bool replay) {
  walk_.Fail(state.CheckValues(walk_.models[p]));
  walk_.Fail(state.CheckLedger(walk_.touch[p]));
  if (replay) walk_.Fail(state.CheckReplay(walk_.models[p]));
}

void InvariantChecker::CheckBounds(const HeldState& state, std::uint32_t p) {
  const MapVersion start = state.shard->start();
  const ps_server::Ledger& ledger = state.shard->ledger();
  if (start == lsn_[p].first && state.shard->lsn() < lsn_[p].second)
    walk_.Fail(absl::StrCat("I4 lsn fell within one start: p=", p));
  if (start < lsn_[p].first && !walk_.options.torn)
    walk_.Fail(absl::StrCat("I4 start fell: p=", p));
  lsn_[p] = {start, state.shard->lsn()};
  // If the journal may have lost records, it may have forgotten that closures ended. More closures
  // can then be open at a shard than the journal knows.
  if (walk_.options.torn) return;
  std::size_t open = 0;
  for (const auto& [c, bits] : ledger.open())
    open += !committed_.succeeded.Contains(c.value()) && !committed_.dead.Contains(c.value());
  const std::size_t intervals = ledger.done().interval_count();
  walk_.Largest("closures open at a shard", open);
  walk_.Largest("intervals of done", intervals);
  walk_.Largest("bytes of a ledger", ledger.MemoryBytes());
  if (open > walk_.options.open_max + resumed_open_[p])
    walk_.Fail(absl::StrCat("I6 more closures are open than were ever granted together: p=", p,
                            " open=", open));
  // The holes of `done` are closures of these kinds: granted and not ended, dead, in todo or lost
  // here, or ended since the last Close. The number of intervals is at most one more than that of
  // holes.
  const IntervalSet holes = committed_.succeeded.Minus(ledger.done()).Union(committed_.dead);
  if (intervals > walk_.options.open_max + holes.interval_count() + 1 + resumed_intervals_[p])
    walk_.Fail(absl::StrCat("I6 done has more intervals than its holes explain: p=", p));
}

}  // namespace evergrad::simulation

#include "tests/simulation/end_checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/plan/plan.h"

namespace evergrad::simulation {
namespace {

using coordinator::UpdateAccount;

std::uint64_t UpdatesIn(const ps_server::Shard& shard) {
  std::uint64_t updates = shard.updates_applied();
  for (const auto& [reason, count] : shard.skips()) updates += count;
  return updates;
}

const plan::Plan& PlanOfWalk() {
  plan::PlanSpec spec;
  spec.train_examples = kClosures * kUpdates;
  spec.steps_per_closure = kUpdates;
  spec.shuffle = false;
  static const plan::Plan plan = *plan::Plan::Create(spec);
  return plan;
}

}  // namespace

void EndChecks::ResumeFrom(const std::vector<Snapshot>& snapshots,
                           const std::vector<const HeldState*>& states) {
  taken_over_ = UpdateAccount::Before{std::vector<std::uint64_t>{}, true, false};
  for (std::uint32_t p = 0; p < kShards; ++p) {
    const ps_server::Shard& shard = *states[p]->shard;
    taken_over_->updates->push_back(UpdatesIn(shard));
    taken_over_->whole = taken_over_->whole && shard.ledger().open().empty() &&
                         snapshots[p].done == snapshots[0].done;
  }
}

void EndChecks::BeginResumed(const IntervalSet& succeeded) {
  resumed_ = succeeded;
  for (std::uint32_t c = 0; c < kClosures; ++c) metrics_counted_[c] = succeeded.Contains(c) ? 1 : 0;
}

void EndChecks::CheckEnd(const DurableState& state, const std::vector<const HeldState*>& held) {
  if (state.succeeded.size() + state.dead.size() != kClosures)
    walk_.Fail("P2 a closure has not ended");
  for (std::uint32_t p = 0; p < kShards; ++p) CheckExactlyOnce(state, p, *held[p]);
  for (std::uint32_t c = 0; c < kClosures; ++c) {
    if (!walk_.options.torn && metrics_counted_[c] != (state.succeeded.Contains(c) ? 1 : 0))
      walk_.Fail(absl::StrCat("P2 metrics counted ", metrics_counted_[c], " times: c=", c));
  }
  CompareUpdates(state, held);
}

void EndChecks::CheckExactlyOnce(const DurableState& state, std::uint32_t p,
                                 const HeldState& held) {
  checker_.CheckState(held, p, true);
  for (std::uint32_t c = 0; c < kClosures; ++c) {
    for (std::uint32_t u = 0; u < kUpdates; ++u) {
      const int n = held.count[c * kUpdates + u];
      const int want = walk_.Touches(p, c, u) ? 1 : 0;
      const bool at_most = state.dead.Contains(c) || state.lost[p].Contains(c);
      if (at_most ? n > want : n != want)
        walk_.Fail(absl::StrCat("I7 not exactly once: c=", c, " u=", u, " p=", p, " want=", want,
                                " got=", n));
    }
  }
}

UpdateAccount EndChecks::AccountOf(const DurableState& state) {
  UpdateAccount account;
  for (std::uint64_t c = 0; c < kClosures; ++c) {
    if (!state.succeeded.Contains(c) || resumed_.Contains(c)) continue;
    if (const absl::Status status = UpdateAccount::Check(touched_less_[c], kShards, kUpdates);
        !status.ok())
      walk_.Fail(absl::StrCat("I11 a worker's report is refused: ", status.message()));
    account.Count(kUpdates, touched_less_[c]);
  }
  if (taken_over_) account.TakeOver(*taken_over_);
  return account;
}

void EndChecks::CompareUpdates(const DurableState& state,
                               const std::vector<const HeldState*>& held) {
  std::vector<UpdateAccount::Shard> shards;
  for (std::uint32_t p = 0; p < kShards; ++p) {
    const auto& touch = walk_.touch[p];
    const bool by_plan = std::all_of(
        touch.begin(), touch.end(), [](std::uint8_t bits) { return bits == (1u << kUpdates) - 1; });
    shards.push_back({p, absl::StrCat("shard ", p), by_plan, UpdatesIn(*held[p]->shard)});
  }
  const auto finding = AccountOf(state).Compare(
      PlanOfWalk(), {state.succeeded, state.dead, resumed_, state.lost}, shards);
  const bool unharmed =
      state.dead.empty() && !taken_over_ &&
      std::all_of(state.lost.begin(), state.lost.end(), [](const auto& l) { return l.empty(); });
  if (finding.verdict == UpdateAccount::Verdict::kDifferent)
    walk_.Fail(absl::StrCat("I11 an honest job would fail: ", finding.difference));
  if (unharmed && finding.verdict != UpdateAccount::Verdict::kExact)
    walk_.Fail("I11 an honest job that lost nothing is not called exact");
  walk_.Count(finding.verdict == UpdateAccount::Verdict::kExact
                  ? "updates compared: exact"
                  : "updates compared: within bounds");
}

void EndChecks::CheckLastCut(const DurableState& state, std::uint32_t p, const HeldState& cut) {
  checker_.CheckState(cut, p, true);
  if (walk_.options.torn) return;  // the journal may have lost the reason for a refusal
  const IntervalSet refused = cut.shard->ledger().refused().Minus(state.dead).Minus(state.lost[p]);
  if (!refused.empty())
    walk_.Fail(absl::StrCat("20a the last cut refuses what nobody cancelled: p=", p,
                            " refused=", refused.ToString()));
}

}  // namespace evergrad::simulation

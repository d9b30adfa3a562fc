#include "coordinator/closures/update_account.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace evergrad::coordinator {
namespace {

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

std::uint64_t UpdatesBelow(const plan::Plan& plan, std::uint64_t closure) {
  return closure >= plan.closures() ? plan.steps()
                                    : plan.Closure(ClosureId(closure)).first_global_step;
}

// Returns the number of updates of all closures in `set`. The cost depends on the number of
// intervals in the set, not on the number of closures.
std::uint64_t UpdatesOf(const plan::Plan& plan, const IntervalSet& set) {
  std::uint64_t updates = 0;
  for (const IntervalSet::Interval& i : set.Intervals())
    updates += UpdatesBelow(plan, i.end) - UpdatesBelow(plan, i.begin);
  return updates;
}

std::uint64_t Minus(std::uint64_t a, std::uint64_t b) { return a - std::min(a, b); }
std::uint64_t Plus(std::uint64_t a, std::uint64_t b) { return a > kNoLimit - b ? kNoLimit : a + b; }

}  // namespace

absl::Status UpdateAccount::Check(const TouchedLess& less, std::uint32_t shards,
                                  std::uint32_t updates) {
  for (std::size_t i = 0; i < less.size(); ++i) {
    const auto [shard, touched] = less[i];
    if (shard >= shards || (i > 0 && shard <= less[i - 1].first))
      return absl::InvalidArgumentError(
          absl::StrCat("the list of shards that only some updates of a closure touch must have "
                       "rising shard numbers below ",
                       shards, ", got=", shard));
    if (touched >= updates)
      return absl::InvalidArgumentError(absl::StrCat(
          "a listed shard must be touched by fewer updates than the closure has: updates=", updates,
          ", got=", touched, " shard=", shard));
  }
  return absl::OkStatus();
}

void UpdateAccount::Count(std::uint32_t updates, const std::optional<TouchedLess>& less) {
  if (!less) {
    unreported_ = true;
    return;
  }
  for (const auto& [shard, touched] : *less) touched_less_[shard] += updates - touched;
}

void UpdateAccount::Restore(std::map<std::uint32_t, std::uint64_t> touched_less, bool unreported,
                            std::optional<Before> before) {
  touched_less_ = std::move(touched_less);
  unreported_ = unreported;
  before_ = std::move(before);
}

UpdateAccount::Bounds UpdateAccount::BoundsOf(const plan::Plan& plan, const Ended& ended,
                                              const Shard& shard) const {
  // The shard may lack updates that were lost with a server and reported as lost. The shard may
  // also hold updates of closures that ended without success.
  const std::uint64_t missing =
      shard.shard < ended.lost.size() ? UpdatesOf(plan, ended.lost[shard.shard]) : 0;
  const std::uint64_t beyond = UpdatesOf(plan, ended.dead);
  const bool from_the_seed = !before_ || (shard.by_plan && !before_->another_plan);
  if (from_the_seed && shard.by_plan) {
    const std::uint64_t all = UpdatesOf(plan, ended.succeeded);
    return {Minus(all, missing), Plus(all, beyond)};
  }
  // The planned updates of this job's own closures.
  const std::uint64_t planned = UpdatesOf(plan, ended.succeeded.Minus(ended.resumed));
  const auto less = touched_less_.find(shard.shard);
  const std::uint64_t own =
      shard.by_plan || less == touched_less_.end() ? planned : Minus(planned, less->second);
  if (!shard.by_plan && unreported_) return {0, kNoLimit};
  if (!before_) return {Minus(own, missing), Plus(own, beyond)};
  if (!before_->updates || shard.shard >= before_->updates->size())
    return {Minus(own, missing), kNoLimit};
  const std::uint64_t before = (*before_->updates)[shard.shard];
  // If the files hold updates of more closures than those that count as succeeded, some of these
  // updates are also counted as this job's own.
  return {Minus(before_->whole ? Plus(before, own) : std::max(before, own), missing),
          Plus(Plus(before, own), beyond)};
}

UpdateAccount::Finding UpdateAccount::Compare(const plan::Plan& plan, const Ended& ended,
                                              const std::vector<Shard>& shards) const {
  Finding finding;
  std::size_t different = 0;
  // True once the message names a shard whose expected number follows from the plan alone. A shard
  // of this kind is preferred, because workers' reports cannot be the cause of its difference.
  bool by_plan = false;
  for (const Shard& shard : shards) {
    const Bounds bounds = BoundsOf(plan, ended, shard);
    if (bounds.least != bounds.most && finding.verdict == Verdict::kExact)
      finding.verdict = Verdict::kWithin;
    if (shard.updates >= bounds.least && shard.updates <= bounds.most) continue;
    finding.verdict = Verdict::kDifferent;
    if (different++ > 0 && (by_plan || !shard.by_plan)) continue;
    by_plan = shard.by_plan;
    finding.difference = absl::StrCat(
        "shard ", shard.shard, " (", shard.name,
        ") does not hold the updates that the workers reported as done: expected=", bounds.least,
        bounds.most == bounds.least ? ""
        : bounds.most == kNoLimit   ? " or more"
                                    : absl::StrCat(" to ", bounds.most),
        " found=", shard.updates);
  }
  if (different > 1)
    absl::StrAppend(&finding.difference, "; ", different - 1,
                    different == 2 ? " more shard differs" : " more shards differ");
  return finding;
}

}  // namespace evergrad::coordinator

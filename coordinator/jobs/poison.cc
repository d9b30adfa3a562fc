#include "coordinator/jobs/poison.h"

namespace evergrad::coordinator {

void PoisonRule::OnDeath(MonoTime now, std::optional<Running> running, bool counts) {
  waiting_.push_back({now, running, counts});
}

void PoisonRule::OnEnded(ClosureId closure) { blames_.erase(closure); }

PoisonRule::Verdict PoisonRule::Judge(MonoTime now) {
  Verdict verdict;
  std::size_t judged = 0;
  for (; judged < waiting_.size() && now - waiting_[judged].at > options_.together; ++judged) {
    const Death& death = waiting_[judged];
    // Two deaths at the same closure do not count as simultaneous, because the closure was granted
    // again and killed its next worker at once.
    const auto with = [&](const Death& other) {
      const bool same =
          other.running && death.running && other.running->closure == death.running->closure;
      return !same && other.at - death.at <= options_.together &&
             death.at - other.at <= options_.together;
    };
    const bool together = (last_judged_ && with(*last_judged_)) ||
                          (judged + 1 < waiting_.size() && with(waiting_[judged + 1]));
    last_judged_ = death;
    if (!death.running || together) {
      verdict.others += death.counts;
      continue;
    }
    Blame& blame = blames_[death.running->closure];
    if (blame.count == 0 || blame.step != death.running->step) blame = {death.running->step, 0};
    if (++blame.count >= options_.deaths && !verdict.poison) verdict.poison = death.running;
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(judged));
  return verdict;
}

}  // namespace evergrad::coordinator

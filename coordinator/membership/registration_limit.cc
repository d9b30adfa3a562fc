#include "coordinator/membership/registration_limit.h"

#include <algorithm>
#include <cmath>

namespace evergrad::coordinator {
namespace {

constexpr double kRenewalCost = 0.1;
// Longest wait of a correct new task after silent sessions have ended.
constexpr double kDebtSeconds = 10;
constexpr std::size_t kIdentitiesMax = 4096;
constexpr std::chrono::milliseconds kRetryMin{100}, kRetryMax{60'000};

}  // namespace

double RegistrationLimit::Refilled(const Bucket& bucket, MonoTime now, double burst,
                                   double per_second) {
  const double seconds = std::max(0.0, std::chrono::duration<double>(now - bucket.at).count());
  return std::min(burst, bucket.tokens + seconds * per_second);
}

RegistrationLimit::Verdict RegistrationLimit::Take(MonoTime now, const std::string& task, Who who) {
  const double cost_each = who == Who::kRenews ? kRenewalCost : 1,
               cost_all = who == Who::kNewcomer ? 1 : 0;
  const auto found = each_.find(task);
  Bucket each = found == each_.end() ? Bucket{options_.each_burst, now} : found->second;
  each = {Refilled(each, now, options_.each_burst, options_.each_per_second), now};
  all_ = {Refilled(all_, now, options_.all_burst, options_.all_per_second), now};
  const double missing_each = cost_each - each.tokens,
               missing_all = cost_all > 0 ? cost_all - all_.tokens : 0;
  if (missing_each > 0 || missing_all > 0) {
    const double seconds =
        std::max(missing_each / options_.each_per_second, missing_all / options_.all_per_second);
    Verdict verdict;
    verdict.accepted = false;
    verdict.of_all = missing_each <= 0;
    verdict.retry_after =
        std::clamp(std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(seconds * 1000))),
                   kRetryMin, kRetryMax);
    return verdict;
  }
  each.tokens -= cost_each;
  all_.tokens -= cost_all;
  if (found == each_.end() && each_.size() >= kIdentitiesMax) ForgetFull(now);
  each_.insert_or_assign(task, each);
  return Verdict();
}

void RegistrationLimit::EndedSilent(MonoTime now) {
  const double least = -kDebtSeconds * options_.all_per_second;
  all_ = {std::max(least, Refilled(all_, now, options_.all_burst, options_.all_per_second) -
                              options_.silent_cost),
          now};
}

double RegistrationLimit::recent(MonoTime now) const {
  return options_.all_burst - Refilled(all_, now, options_.all_burst, options_.all_per_second);
}

// Removes full buckets; if none is full, removes the fullest one.
void RegistrationLimit::ForgetFull(MonoTime now) {
  const auto tokens = [&](const auto& one) {
    return Refilled(one.second, now, options_.each_burst, options_.each_per_second);
  };
  std::erase_if(each_, [&](const auto& one) { return tokens(one) >= options_.each_burst; });
  if (each_.size() < kIdentitiesMax) return;
  each_.erase(std::max_element(each_.begin(), each_.end(), [&](const auto& a, const auto& b) {
    return tokens(a) < tokens(b);
  }));
}

}  // namespace evergrad::coordinator

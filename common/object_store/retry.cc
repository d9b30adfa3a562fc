#include "common/object_store/retry.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/random/philox.h"

namespace evergrad::object_store {
namespace {

using std::chrono::milliseconds;

constexpr std::array<absl::string_view, 4> kCredentialCodes{
    "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId"};
constexpr std::array<absl::string_view, 7> kPassingCodes{
    "SlowDown",       "InternalError",    "ServiceUnavailable",        "RequestTimeout",
    "RequestTimeOut", "OperationAborted", "ConditionalRequestConflict"};
constexpr std::array<int, 6> kPassingStatuses{408, 429, 500, 502, 503, 504};

template <class Values, class Value>
bool Contains(const Values& values, const Value& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

Reaction ReactionTo(const Failure& failure) {
  if (!failure.cause.ok()) {
    if (failure.cause.code() == absl::StatusCode::kUnavailable) return Reaction::kRetry;
    if (failure.cause.code() == absl::StatusCode::kDataLoss) return Reaction::kRetryBriefly;
    return Reaction::kGiveUp;
  }
  const absl::string_view code = failure.error.code;
  if (Contains(kCredentialCodes, code) || failure.http_status == 401)
    return Reaction::kRenewCredentials;
  // S3 answers 400 to expired credentials, and the response to HEAD has no body that says so.
  if (failure.http_status == 400 && code.empty() && failure.error.region.empty())
    return Reaction::kRenewCredentials;
  if (code == "RequestTimeTooSkewed") return Reaction::kRetryOnce;
  if (Contains(kPassingCodes, code) || Contains(kPassingStatuses, failure.http_status))
    return Reaction::kRetry;
  return Reaction::kGiveUp;
}

bool MayBeDone(const Failure& failure) {
  if (!failure.sent) return false;
  // A response that is not valid may be the response to a request that succeeded.
  if (!failure.cause.ok()) return true;
  return failure.http_status >= 500 || failure.http_status == 408 ||
         (failure.http_status >= 200 && failure.http_status < 300);
}

RetrySchedule::RetrySchedule(const RetryLimits& limits, MonoTime now, std::uint64_t seed)
    : limits_(limits), first_(now), seed_(seed) {}

milliseconds RetrySchedule::Elapsed(MonoTime now) const {
  return std::chrono::duration_cast<milliseconds>(now - first_);
}

milliseconds RetrySchedule::RandomWait() {
  milliseconds bound = std::max(limits_.wait_first, milliseconds(0));
  for (int i = 0; i < waits_ && bound < limits_.wait_max; ++i) bound *= 2;
  bound = std::clamp(bound, milliseconds(0), std::max(limits_.wait_max, milliseconds(0)));
  const std::uint64_t bits = random::Bits64(seed_, static_cast<std::uint64_t>(waits_));
  ++waits_;
  return milliseconds(
      static_cast<std::int64_t>(bits % (static_cast<std::uint64_t>(bound.count()) + 1)));
}

std::optional<milliseconds> RetrySchedule::NextWait(Reaction reaction,
                                                    std::optional<milliseconds> retry_after,
                                                    MonoTime now) {
  ++failures_;
  if (failures_ >= kAttemptsMax) return std::nullopt;
  milliseconds wait{0};
  switch (reaction) {
    case Reaction::kGiveUp: return std::nullopt;
    case Reaction::kRenewCredentials:
      if (std::exchange(renewed_, true)) return std::nullopt;
      break;
    case Reaction::kRetryOnce:
      if (std::exchange(retried_once_, true)) return std::nullopt;
      wait = RandomWait();
      break;
    case Reaction::kRetryBriefly:
      if (++invalid_responses_ > kInvalidResponsesMax) return std::nullopt;
      wait = RandomWait();
      break;
    case Reaction::kRetry: wait = RandomWait(); break;
  }
  if (retry_after) wait = std::max(wait, std::min(*retry_after, limits_.wait_max));
  if (now - first_ + wait >= limits_.time_max) return std::nullopt;
  return wait;
}

}  // namespace evergrad::object_store

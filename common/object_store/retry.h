// Decides whether a failed request to an object store is repeated, and when. Pure.
//
// A request is repeated after errors that pass: no connection, a busy or failing store, a conflict
// with another request. The waits grow exponentially and are random, so that many processes do not
// repeat their requests at the same moments.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "common/object_store/store_errors.h"
#include "common/time/clock.h"

namespace evergrad::object_store {

// Limits of the retries of one request. The n-th wait, from n = 0, is random between 0 and
// min(wait_max, wait_first * 2^n). A request is not repeated once `time_max` has passed since its
// first attempt.
struct RetryLimits {
  std::chrono::milliseconds wait_first{100}, wait_max{10'000}, time_max{180'000};
};

// An attempt that was made this often is not repeated, even if the clock stands still.
inline constexpr int kAttemptsMax = 1'000;
// Repetitions after responses that are not valid (DataLoss). Such responses seldom become valid.
inline constexpr int kInvalidResponsesMax = 4;

enum class Reaction {
  kGiveUp,            // the error is final
  kRetry,             // repeat until the time has passed
  kRetryOnce,         // repeat one time: the clock of this machine may be wrong
  kRetryBriefly,      // repeat kInvalidResponsesMax times
  kRenewCredentials,  // repeat at once with new credentials, one time
};

Reaction ReactionTo(const Failure& failure);

// Returns whether the store may have carried out the request although the attempt failed. Then a
// conditional request that is repeated can fail because of its own first attempt.
bool MayBeDone(const Failure& failure);

// The attempts of one request. Not thread-safe.
class RetrySchedule {
 public:
  // `now` is the time of the first attempt. The seed determines the waits.
  RetrySchedule(const RetryLimits& limits, MonoTime now, std::uint64_t seed);
  // Records a failed attempt. Returns the time to wait before the next attempt, or nullopt if the
  // request is not repeated. The wait is at least `retry_after`, but at most RetryLimits::wait_max.
  std::optional<std::chrono::milliseconds> NextWait(
      Reaction reaction, std::optional<std::chrono::milliseconds> retry_after, MonoTime now);
  int failures() const { return failures_; }
  std::chrono::milliseconds Elapsed(MonoTime now) const;

 private:
  // Returns a random wait that is bounded by the number of waits so far.
  std::chrono::milliseconds RandomWait();

  const RetryLimits limits_;
  const MonoTime first_;
  const std::uint64_t seed_;
  int failures_ = 0, waits_ = 0, invalid_responses_ = 0;
  bool renewed_ = false, retried_once_ = false;
};

}  // namespace evergrad::object_store

#include "common/object_store/retry.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace evergrad::object_store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Failure Answered(int http_status, const std::string& code = "") {
  Failure failure;
  failure.http_status = http_status;
  failure.error.code = code;
  return failure;
}

Failure NotAnswered(absl::StatusCode code) {
  Failure failure;
  failure.cause = absl::Status(code, "the cause");
  return failure;
}

TEST_CASE("the reaction to a failure follows its code, and then its status") {
  struct Case {
    Failure failure;
    Reaction reaction;
  };
  const std::vector<Case> cases = {
      {NotAnswered(absl::StatusCode::kUnavailable), Reaction::kRetry},
      {NotAnswered(absl::StatusCode::kDataLoss), Reaction::kRetryBriefly},
      {NotAnswered(absl::StatusCode::kCancelled), Reaction::kGiveUp},
      {NotAnswered(absl::StatusCode::kUnauthenticated), Reaction::kGiveUp},
      {NotAnswered(absl::StatusCode::kResourceExhausted), Reaction::kGiveUp},
      {NotAnswered(absl::StatusCode::kInvalidArgument), Reaction::kGiveUp},
      {NotAnswered(absl::StatusCode::kFailedPrecondition), Reaction::kGiveUp},
      {Answered(408, "RequestTimeout"), Reaction::kRetry},
      {Answered(400, "RequestTimeout"), Reaction::kRetry},
      {Answered(408), Reaction::kRetry},
      {Answered(429), Reaction::kRetry},
      {Answered(500), Reaction::kRetry},
      {Answered(500, "InternalError"), Reaction::kRetry},
      {Answered(200, "InternalError"), Reaction::kRetry},
      {Answered(502), Reaction::kRetry},
      {Answered(503, "SlowDown"), Reaction::kRetry},
      {Answered(504), Reaction::kRetry},
      {Answered(409, "ConditionalRequestConflict"), Reaction::kRetry},
      {Answered(409, "OperationAborted"), Reaction::kRetry},
      {Answered(409, "BucketNotEmpty"), Reaction::kGiveUp},
      {Answered(403, "RequestTimeTooSkewed"), Reaction::kRetryOnce},
      {Answered(400, "ExpiredToken"), Reaction::kRenewCredentials},
      {Answered(401, "ExpiredToken"), Reaction::kRenewCredentials},
      {Answered(403, "InvalidToken"), Reaction::kRenewCredentials},
      {Answered(400, "TokenRefreshRequired"), Reaction::kRenewCredentials},
      {Answered(403, "InvalidAccessKeyId"), Reaction::kRenewCredentials},
      {Answered(401), Reaction::kRenewCredentials},
      {Answered(400), Reaction::kRenewCredentials},
      {Answered(403), Reaction::kGiveUp},
      {Answered(403, "AccessDenied"), Reaction::kGiveUp},
      {Answered(403, "SignatureDoesNotMatch"), Reaction::kGiveUp},
      {Answered(400, "InvalidArgument"), Reaction::kGiveUp},
      {Answered(404, "NoSuchKey"), Reaction::kGiveUp},
      {Answered(412, "PreconditionFailed"), Reaction::kGiveUp},
      {Answered(301, "PermanentRedirect"), Reaction::kGiveUp},
      {Answered(501, "NotImplemented"), Reaction::kGiveUp},
      {Answered(507), Reaction::kGiveUp},
  };
  for (const Case& one : cases) {
    CAPTURE(one.failure.http_status, one.failure.error.code, one.failure.cause.ToString());
    CHECK(ReactionTo(one.failure) == one.reaction);
  }
  // A bucket in another region is not a matter of the credentials.
  Failure other_region = Answered(400);
  other_region.error.region = "eu-west-1";
  CHECK(ReactionTo(other_region) == Reaction::kGiveUp);
}

TEST_CASE("a failed request may have been carried out unless the store refused it") {
  CHECK(MayBeDone(NotAnswered(absl::StatusCode::kUnavailable)));
  CHECK(MayBeDone(NotAnswered(absl::StatusCode::kDataLoss)));
  for (const int status : {200, 408, 500, 502, 503, 504}) {
    CAPTURE(status);
    CHECK(MayBeDone(Answered(status)));
  }
  for (const int status : {301, 400, 401, 403, 404, 409, 412, 429}) {
    CAPTURE(status);
    CHECK_FALSE(MayBeDone(Answered(status)));
  }
  Failure without_credentials = NotAnswered(absl::StatusCode::kUnavailable);
  without_credentials.sent = false;
  CHECK_FALSE(MayBeDone(without_credentials));
}

TEST_CASE("the waits are random up to a bound that doubles") {
  const RetryLimits limits{milliseconds(100), milliseconds(1'000), seconds(1'000'000)};
  const int bounds_ms[] = {100, 200, 400, 800, 1'000, 1'000, 1'000};
  std::vector<milliseconds> largest(std::size(bounds_ms)),
      smallest(std::size(bounds_ms), seconds(9));
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    RetrySchedule schedule(limits, MonoTime(0), seed);
    for (std::size_t i = 0; i < std::size(bounds_ms); ++i) {
      const auto wait = schedule.NextWait(Reaction::kRetry, std::nullopt, MonoTime(0));
      REQUIRE(wait.has_value());
      largest[i] = std::max(largest[i], *wait);
      smallest[i] = std::min(smallest[i], *wait);
    }
    CHECK(schedule.failures() == std::size(bounds_ms));
  }
  for (std::size_t i = 0; i < std::size(bounds_ms); ++i) {
    CAPTURE(i);
    CHECK(largest[i] <= milliseconds(bounds_ms[i]));
    CHECK(largest[i] > milliseconds(bounds_ms[i] * 9 / 10));
    CHECK(smallest[i] < milliseconds(bounds_ms[i] / 10));
  }
}

TEST_CASE("the seed determines the waits") {
  const auto waits_of = [](std::uint64_t seed) {
    RetrySchedule schedule({}, MonoTime(0), seed);
    std::vector<std::int64_t> waits;
    for (int i = 0; i < 10; ++i)
      waits.push_back(
          schedule.NextWait(Reaction::kRetry, std::nullopt, MonoTime(0)).value().count());
    return waits;
  };
  CHECK(waits_of(7) == waits_of(7));
  CHECK(waits_of(7) != waits_of(8));
}

TEST_CASE("a store can ask for a longer wait, up to the longest wait") {
  const RetryLimits limits{milliseconds(0), milliseconds(10'000), seconds(180)};
  RetrySchedule schedule(limits, MonoTime(0), 1);
  const auto wait_after = [&](milliseconds retry_after) {
    return schedule.NextWait(Reaction::kRetry, retry_after, MonoTime(0));
  };
  CHECK(wait_after(seconds(3)) == milliseconds(3'000));
  CHECK(wait_after(seconds(3'600)) == milliseconds(10'000));
  CHECK(wait_after(seconds(0)) == milliseconds(0));
}

TEST_CASE("a request is not repeated when its time has passed") {
  const RetryLimits limits{milliseconds(0), milliseconds(10'000), seconds(180)};
  const MonoTime first = std::chrono::hours(5);
  RetrySchedule schedule(limits, first, 1);
  CHECK(schedule.NextWait(Reaction::kRetry, std::nullopt, first + seconds(179)));
  // A wait that ends after the time is not begun.
  CHECK_FALSE(schedule.NextWait(Reaction::kRetry, seconds(2), first + seconds(179)));
  CHECK_FALSE(schedule.NextWait(Reaction::kRetry, std::nullopt, first + seconds(180)));
  CHECK_FALSE(schedule.NextWait(Reaction::kRenewCredentials, std::nullopt, first + seconds(181)));
  CHECK(schedule.failures() == 4);
  CHECK(schedule.Elapsed(first + seconds(181)) == seconds(181));
}

TEST_CASE("some failures are repeated a fixed number of times") {
  const auto repetitions = [](Reaction reaction) {
    RetrySchedule schedule({}, MonoTime(0), 3);
    int count = 0;
    while (schedule.NextWait(reaction, std::nullopt, MonoTime(0))) ++count;
    return count;
  };
  CHECK(repetitions(Reaction::kGiveUp) == 0);
  CHECK(repetitions(Reaction::kRetryOnce) == 1);
  CHECK(repetitions(Reaction::kRenewCredentials) == 1);
  CHECK(repetitions(Reaction::kRetryBriefly) == kInvalidResponsesMax);
  // The clock of this test stands still, and the request ends nevertheless.
  CHECK(repetitions(Reaction::kRetry) == kAttemptsMax - 1);
}

TEST_CASE("new credentials are used without a wait, also after other failures") {
  RetrySchedule schedule({}, MonoTime(0), 3);
  CHECK(schedule.NextWait(Reaction::kRetry, std::nullopt, MonoTime(0)));
  CHECK(schedule.NextWait(Reaction::kRenewCredentials, std::nullopt, MonoTime(0)) ==
        milliseconds(0));
  CHECK(schedule.NextWait(Reaction::kRetry, std::nullopt, MonoTime(0)));
  CHECK_FALSE(schedule.NextWait(Reaction::kRenewCredentials, std::nullopt, MonoTime(0)));
}

}  // namespace
}  // namespace evergrad::object_store

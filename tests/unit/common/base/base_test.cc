#include <catch2/catch.hpp>

#include "common/base/build_info.h"
#include "common/base/checked_math.h"
#include "common/base/ids.h"
#include "common/base/mix.h"
#include "common/base/nearest_name.h"
#include "common/base/status.h"

namespace evergrad {
namespace {

TEST_CASE("stamps are compared as pairs, with the term first") {
  CHECK(ShardEpoch{1, 9} < ShardEpoch{2, 0});
  CHECK(ShardEpoch{2, 1} < ShardEpoch{2, 2});
  CHECK(ShardEpoch{2, 2} == ShardEpoch{2, 2});
  CHECK(ShardEpoch{3, 14}.ToString() == "3.14");
  CHECK(JobUidString(JobUid(0xABCu)) == "0000000000000abc");
}

TEST_CASE("the nearest name is suggested only if it is near") {
  const std::vector<std::string> names = {"learning_rate", "momentum", "beta_1"};
  CHECK(NearestName("momentun", names) == "momentum");
  CHECK(NearestName("Beta-1", names) == "beta_1");
  CHECK(NearestName("bteta_1", names) == "beta_1");
  CHECK(NearestName("learn", names) == "learning_rate");
  CHECK(NearestName("rho", names).empty());
  CHECK(NearestName(std::string(65, 'm'), names).empty());
  CHECK(NearestName("momentum", {}).empty());
}

TEST_CASE("a user's error stays a user's error when it is copied, and is never retried") {
  const absl::Status machine = absl::UnavailableError("gone");
  CHECK(BlameOf(machine) == Blame::kMachine);
  CHECK(IsRetryable(machine));
  const absl::Status user = UserError(machine);
  const absl::Status copy = WithOrigin(user, "worker/0#7");
  CHECK(BlameOf(copy) == Blame::kUser);
  CHECK_FALSE(IsRetryable(copy));
  CHECK(OriginOf(copy) == "worker/0#7");
  CHECK(OriginOf(machine).empty());
  CHECK(UserError(absl::OkStatus()).ok());
  CHECK(WithOrigin(absl::OkStatus(), "x").ok());
}

TEST_CASE("each status code has a default retryability, and a stated one overrules it") {
  CHECK(IsRetryable(absl::DeadlineExceededError("")));
  CHECK(IsRetryable(absl::AbortedError("")));
  CHECK(IsRetryable(absl::ResourceExhaustedError("")));
  CHECK_FALSE(IsRetryable(absl::InternalError("")));
  CHECK_FALSE(IsRetryable(absl::InvalidArgumentError("")));
  CHECK_FALSE(IsRetryable(absl::OkStatus()));
  CHECK(IsRetryable(WithRetryable(absl::InternalError(""), true)));
  CHECK_FALSE(IsRetryable(WithRetryable(absl::UnavailableError(""), false)));
  CHECK_FALSE(IsRetryable(WithRetryable(UserError(absl::UnavailableError("")), true)));
}

absl::StatusOr<int> Half(int x) {
  if (x % 2 != 0) return absl::InvalidArgumentError("odd");
  return x / 2;
}
absl::StatusOr<int> Quarter(int x) {
  EG_ASSIGN_OR_RETURN(const int half, Half(x));
  EG_ASSIGN_OR_RETURN(const int quarter, Half(half));
  EG_RETURN_IF_ERROR(absl::OkStatus());
  return quarter;
}

TEST_CASE("the status macros pass values on and return the first error") {
  CHECK(*Quarter(12) == 3);
  CHECK(Quarter(6).status().message() == "odd");
}

TEST_CASE("checked arithmetic reports a product or a sum that wraps") {
  const std::uint64_t big = ~0ull;
  CHECK_FALSE(CheckedAdd(big, 1));
  CHECK(*CheckedAdd(big, 0) == big);
  CHECK_FALSE(CheckedMul(1ull << 32, 1ull << 32));
  CHECK(*CheckedMul(1ull << 32, 1ull << 31) == 1ull << 63);
  CHECK(*CheckedProduct({}) == 1);
  CHECK(RoundUp(65, 64) == 128);
  CHECK(RoundUp(64, 64) == 64);
}

TEST_CASE("the digest of an element depends on its index and on its bits") {
  // These digests are fixed. A program that computes the digest elsewhere must get the same
  // numbers.
  CHECK(Mix(0, 0) == 0x5692161D100B05E5ull);
  CHECK(Mix(3, 0x3F800000u) == 0x756C39B289CB0005ull);
  CHECK(Mix(1ull << 40, 0xBF800000u) == 0x23187C9EEAE5B71Dull);
  CHECK(Mix(0, 0) != Mix(0, 1));
  CHECK(Mix(0, 0) != Mix(1, 0));
  CHECK(Mix(3, 0x3F800000u) != Mix(4, 0x3F800000u));
}

TEST_CASE("the build id starts with the version") {
  CHECK(!Version().empty());
  CHECK(BuildId().rfind(Version() + "+", 0) == 0);
  CHECK(BuildId().size() > Version().size() + 1);
}

}  // namespace
}  // namespace evergrad

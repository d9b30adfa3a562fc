#include "common/client/protocol.h"

#include <catch2/catch.hpp>

#include "common/base/status.h"

namespace evergrad::client {
namespace {

TEST_CASE(
    "a stamp is the same after conversion to a message and back, and an absent one is (0,0)") {
  const ShardEpoch epoch{3, 14};
  CHECK(FromProto<ShardEpoch>(ToProto(epoch)) == epoch);
  CHECK(FromProto<Attempt>(v1::Stamp()) == Attempt{});
}

TEST_CASE("an interval set is the same after conversion to a message and back") {
  for (const IntervalSet& set : {IntervalSet(), IntervalSet({0}), IntervalSet({1, 2, 3, 7, 9, 10}),
                                 IntervalSet::Range(5, ~0ull)}) {
    const auto back = FromProto(ToProto(set));
    REQUIRE(back.ok());
    CHECK(*back == set);
  }
}

TEST_CASE("a malformed interval set is refused, and the error names the position") {
  struct Case {
    std::vector<std::uint64_t> bounds;
    const char* words;
  };
  const Case cases[] = {
      {{1}, "odd number of bounds: bounds=1"},
      {{1, 2, 3}, "odd number of bounds: bounds=3"},
      {{2, 2}, "empty or has decreasing bounds: position=0"},
      {{3, 2}, "empty or has decreasing bounds: position=0"},
      {{1, 3, 2, 5}, "overlap or are out of order: position=2"},
      {{5, 6, 1, 2}, "overlap or are out of order: position=2"},
      {{1, 3, 5, 5}, "empty or has decreasing bounds: position=2"},
  };
  for (const Case& c : cases) {
    v1::IntervalSet proto;
    for (std::uint64_t b : c.bounds) proto.add_bounds(b);
    const auto set = FromProto(proto);
    REQUIRE_FALSE(set.ok());
    CHECK(set.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(set.status().message()), Catch::Contains(c.words));
  }
  v1::IntervalSet touching;  // The shortest form is one interval, but two adjacent ones are valid.
  for (std::uint64_t b : {1, 3, 3, 5}) touching.add_bounds(b);
  CHECK(*FromProto(touching) == IntervalSet::Range(1, 5));
}

TEST_CASE(
    "roles are the same after conversion to a message and back, and unknown roles are refused") {
  for (Role role : {Role::kCoordinator, Role::kPsServer, Role::kWorker})
    CHECK(*FromProto(ToProto(role)) == role);
  CHECK_FALSE(FromProto(v1::ROLE_UNSPECIFIED).ok());
  CHECK_FALSE(FromProto(static_cast<v1::Role>(77)).ok());
}

TEST_CASE("an error keeps code, blame, origin and retryability in a message") {
  const absl::Status errors[] = {
      absl::UnavailableError("server gone"),
      absl::InternalError("x"),
      UserError(absl::InvalidArgumentError("bad record: file=a.gz offset=12")),
      UserError(absl::UnavailableError("user's all the same")),
      WithRetryable(absl::InternalError("try again"), true),
      WithRetryable(absl::UnavailableError("do not"), false),
      WithOrigin(absl::AbortedError("old epoch"), "ps_server/1#3.4"),
  };
  for (const absl::Status& error : errors) {
    CAPTURE(error.ToString());
    v1::ErrorDetail wire;
    REQUIRE(wire.ParseFromString(ToErrorDetail(error, "worker/0").SerializeAsString()));
    const absl::Status back = FromErrorDetail(wire);
    CHECK(back.code() == error.code());
    CHECK(back.message() == error.message());
    CHECK(BlameOf(back) == BlameOf(error));
    CHECK(IsRetryable(back) == IsRetryable(error));
    CHECK(OriginOf(back) == (OriginOf(error).empty() ? "worker/0" : OriginOf(error)));
  }
  CHECK(ToErrorDetail(errors[2]).kind() == "user");
  CHECK(ToErrorDetail(errors[0]).kind() == "transport");
}

TEST_CASE("an error detail is at most 4 KB of valid UTF-8, whatever the message was") {
  const std::string evil = std::string(5000, '\xFF') + std::string(100000, 'x');
  const v1::ErrorDetail detail = ToErrorDetail(absl::InternalError(evil), std::string(100000, 'o'));
  const std::string bytes = detail.SerializeAsString();
  CHECK(bytes.size() <= kErrorDetailBytesMax);
  CHECK(v1::ErrorDetail().ParseFromString(bytes));
}

TEST_CASE("an error detail from a peer never becomes OK") {
  for (int code : {0, -1, 17, 1000000}) {
    v1::ErrorDetail detail;
    detail.set_code(code);
    detail.set_message("m");
    CHECK(FromErrorDetail(detail).code() == absl::StatusCode::kUnknown);
  }
}

TEST_CASE("cleaned text is valid UTF-8 and respects its limit") {
  CHECK(CleanText("plain", 100) == "plain");
  CHECK(CleanText("h\xC3\xA9llo \xE2\x82\xAC \xF0\x9F\x98\x80", 100) ==
        "h\xC3\xA9llo \xE2\x82\xAC \xF0\x9F\x98\x80");
  const std::string bad = "\xEF\xBF\xBD";
  CHECK(CleanText("a\x80z", 100) == "a" + bad + "z");
  CHECK(CleanText("\xC3", 100) == bad);                      // The sequence is truncated.
  CHECK(CleanText("\xC0\xAF", 100) == bad + bad);            // Overlong.
  CHECK(CleanText("\xED\xA0\x80", 100) == bad + bad + bad);  // A surrogate.
  CHECK(CleanText("\xF5\x80\x80\x80", 100) == bad + bad + bad + bad);
  CHECK(CleanText("0123456789", 10) == "0123456789");
  CHECK(CleanText("01234567890", 10) == "0123456...");
  // A character of several bytes is kept or removed as a whole.
  CHECK(CleanText("\xC3\xA9\xC3\xA9\xC3\xA9", 5) == "\xC3\xA9...");
  CHECK(CleanText("abc", 2) == "");
  CHECK(CleanText("", 0) == "");
  for (std::size_t limit = 0; limit < 20; ++limit)
    CHECK(CleanText("a\xFF\xC3\xA9 more than enough text", limit).size() <= limit);
}

TEST_CASE("the numbering part of a plan is the same after conversion to a message and back") {
  plan::PlanSpec spec;
  spec.train_examples = 60000;
  spec.batch_size = 128;
  spec.steps_per_closure = 16;
  spec.epochs = 5;
  spec.shuffle = false;
  spec.shuffle_seed = 99;
  spec.eval_examples = 10000;
  spec.eval_batch_size = 100;
  spec.eval_steps_per_closure = 8;
  v1::Plan proto;
  FillPlan(spec, &proto);
  const plan::PlanSpec back = PlanSpecOf(proto);
  CHECK(back.train_examples == 60000);
  CHECK(back.batch_size == 128);
  CHECK(back.steps_per_closure == 16);
  CHECK(back.epochs == 5);
  CHECK(back.shuffle == false);
  CHECK(back.shuffle_seed == 99);
  CHECK(back.eval_examples == 10000);
  CHECK(back.eval_batch_size == 100);
  CHECK(back.eval_steps_per_closure == 8);
}

}  // namespace
}  // namespace evergrad::client

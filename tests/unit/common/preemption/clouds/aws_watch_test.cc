// Tests the requests to EC2's metadata service, and every kind of answer.
#include "common/preemption/clouds/aws_watch.h"

#include <catch2/catch.hpp>

#include "tests/unit/common/preemption/clouds/transcript_fixture.h"

namespace evergrad::preemption {
namespace {

const std::string kToken = "PUT /latest/api/token";
const std::string kAction = "GET /latest/meta-data/spot/instance-action token=";
const std::string kRecommendation = "GET /latest/meta-data/events/recommendations/rebalance token=";
const char* const kTerminate = R"({"action": "terminate", "time": "2026-11-26T21:00:00Z"})";

TEST_CASE("aws: a token, then the action and the recommendation every 5 s, until the notice") {
  AwsWatch watch;
  const Ask first = watch.Begin();
  CHECK(ShowAsk(first) == kToken);
  CHECK(first.request.headers == std::vector<std::pair<std::string, std::string>>{
                                     {"X-aws-ec2-metadata-token-ttl-seconds", "21600"}});
  CHECK(ShowTurn(watch.OnAnswer(Status(200, "AQAE=="))) == kAction + "AQAE==");
  for (int i = 0; i < 3; ++i) {
    CHECK(ShowTurn(watch.OnAnswer(Status(404))) == kRecommendation + "AQAE==");
    CHECK(ShowTurn(watch.OnAnswer(Status(404))) == kAction + "AQAE== +5000ms");
  }
  CHECK(ShowTurn(watch.OnAnswer(Status(200, kTerminate))) ==
        "notice: EC2 reclaims this machine: action=terminate time=2026-11-26T21:00:00Z | end");
  CHECK_FALSE(watch.Acknowledge());
}

TEST_CASE("aws: the answers are complete once both questions have an answer") {
  AwsWatch watch;
  watch.Begin();
  CHECK_FALSE(watch.OnAnswer(Status(200, "t")).complete);
  CHECK_FALSE(watch.OnAnswer(Status(404)).complete);
  CHECK_FALSE(watch.OnAnswer(Status(500)).complete);
  CHECK_FALSE(watch.OnAnswer(Status(404)).complete);
  CHECK(watch.OnAnswer(Status(404)).complete);
}

TEST_CASE("aws: stop and hibernate are notices, too, and other actions are not") {
  for (const auto& [body, notice] : {std::pair<const char*, bool>{R"({"action": "stop"})", true},
                                     {R"({"action": "hibernate"})", true},
                                     {R"({"action": "none"})", false},
                                     {R"({"action": null})", false},
                                     {R"(["action", "stop"])", false},
                                     {"stop", false}}) {
    INFO(body);
    AwsWatch watch;
    watch.Begin();
    watch.OnAnswer(Status(200, "t"));
    const Turn turn = watch.OnAnswer(Status(200, body));
    CHECK(turn.notice.has_value() == notice);
    CHECK(turn.failure.empty() == notice);
  }
}

TEST_CASE("aws: each new recommendation is reported once, and the watch continues") {
  AwsWatch watch;
  watch.Begin();
  watch.OnAnswer(Status(200, "t"));
  for (const char* time : {"2026-11-26T20:00:00Z", "2026-11-26T20:30:00Z"}) {
    const Answer answer = Status(200, absl::StrCat(R"({"noticeTime": ")", time, R"("})"));
    watch.OnAnswer(Status(404));
    CHECK(ShowTurn(watch.OnAnswer(answer)) ==
          absl::StrCat("recommended: EC2 recommends to leave this machine: rebalance "
                       "recommendation of ",
                       time, " | ", kAction, "t +5000ms"));
    watch.OnAnswer(Status(404));
    CHECK(ShowTurn(watch.OnAnswer(answer)) == kAction + "t +5000ms");
  }
  CHECK(watch.OnAnswer(Status(200, kTerminate)).notice);
}

TEST_CASE("aws: an expired token is replaced at once, and a new token that is refused later") {
  for (const bool during_recommendation : {false, true}) {
    AwsWatch watch;
    watch.Begin();
    watch.OnAnswer(Status(200, "old"));
    watch.OnAnswer(Status(404));
    if (!during_recommendation) watch.OnAnswer(Status(404));
    CHECK(ShowTurn(watch.OnAnswer(Status(401))) == kToken);
    CHECK(ShowTurn(watch.OnAnswer(Status(200, "new"))) == kAction + "new");
    CHECK(ShowTurn(watch.OnAnswer(Status(401))) ==
          "failure: a new token is refused: status=401 | " + kToken + " +1000ms");
    CHECK(ShowTurn(watch.OnAnswer(Status(200, "newer"))) == kAction + "newer");
    CHECK(watch.OnAnswer(Status(200, kTerminate)).notice);
  }
}

TEST_CASE("aws: no token is a failure, and a token that no header can carry is not used") {
  for (const Answer& useless :
       {Silence(), Status(403), Status(404), Status(500), Status(200), Status(200, "a b"),
        Status(200, "a\r\nHost: evil"), Status(200, std::string(1025, 'a'))}) {
    INFO(useless.status << " " << useless.body);
    AwsWatch watch;
    watch.Begin();
    const Turn turn = watch.OnAnswer(useless);
    CHECK_THAT(turn.failure, Catch::StartsWith("no token: "));
    CHECK(ShowAsk(*turn.next) == kToken + " +1000ms");
  }
}

TEST_CASE("aws: an answer of no use is a failure, and the next question is about the notice") {
  for (const bool during_recommendation : {false, true}) {
    for (const Answer& useless : Useless()) {
      INFO(useless.status << " " << useless.body << useless.failure);
      AwsWatch watch;
      watch.Begin();
      watch.OnAnswer(Status(200, "t"));
      if (during_recommendation) watch.OnAnswer(Status(404));
      const Turn turn = watch.OnAnswer(useless);
      CHECK_FALSE(turn.failure.empty());
      CHECK_FALSE(turn.notice);
      CHECK_FALSE(turn.recommendation);
      CHECK_FALSE(turn.complete);
      CHECK(ShowAsk(*turn.next) == kAction + "t +1000ms");
      CHECK(ShowAsk(*watch.OnAnswer(useless).next) == kAction + "t +2000ms");
      CHECK(ShowAsk(*watch.OnAnswer(useless).next) == kAction + "t +5000ms");
      CHECK(watch.OnAnswer(Status(200, kTerminate)).notice);
    }
  }
}

TEST_CASE("aws: a time with hidden characters or without end is harmless in the log") {
  AwsWatch watch;
  watch.Begin();
  watch.OnAnswer(Status(200, "t"));
  const Turn turn = watch.OnAnswer(
      Status(200, R"({"action": "stop", "time": "\u001b[2J)" + std::string(5000, 'x') + "\"}"));
  REQUIRE(turn.notice);
  CHECK(turn.notice->size() < 200);
  CHECK(turn.notice->find('\x1b') == std::string::npos);
}

}  // namespace
}  // namespace evergrad::preemption

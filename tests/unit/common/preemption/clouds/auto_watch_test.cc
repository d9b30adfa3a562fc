// Tests how the setting `auto` finds the cloud, and when it stops searching.
#include "common/preemption/clouds/auto_watch.h"

#include <catch2/catch.hpp>

#include "common/preemption/clouds/aws_watch.h"
#include "tests/unit/common/preemption/clouds/transcript_fixture.h"

namespace evergrad::preemption {
namespace {

const std::string kGce = "GET /computeMetadata/v1/instance/preempted";
const std::string kToken = "PUT /latest/api/token";
const std::string kInstance = "GET /latest/meta-data/instance-id token=t";
const std::string kAzure =
    "GET /metadata/instance/compute/azEnvironment?api-version=2021-02-01&format=text";

TEST_CASE("auto: Compute Engine is found by the header of its answer") {
  AutoWatch watch;
  CHECK(ShowAsk(watch.Begin()) == kGce);
  CHECK(watch.source() == "auto");
  const Answer google = Status(200, "FALSE", {{"metadata-flavor", "Google"}});
  CHECK(ShowTurn(watch.OnAnswer(google)) == "found: gce | " + kGce);
  CHECK(watch.source() == "gce");
  CHECK(ShowTurn(watch.OnAnswer(google)) == kGce + "?wait_for_change=true&timeout_sec=60");
  CHECK(watch.OnAnswer(Status(200, "TRUE", {{"metadata-flavor", "Google"}})).notice);
}

TEST_CASE("auto: EC2 is found by a token and the id of the instance") {
  AutoWatch watch;
  watch.Begin();
  CHECK(ShowTurn(watch.OnAnswer(Status(404))) == kToken);
  CHECK(ShowTurn(watch.OnAnswer(Status(200, "t"))) == kInstance);
  CHECK(ShowTurn(watch.OnAnswer(Status(200, "i-0abc"))) == "found: aws | " + kToken);
  CHECK(watch.source() == "aws");
}

TEST_CASE("auto: Azure is found by the name of its environment, and is acknowledged") {
  AutoWatch watch;
  watch.Begin();
  watch.OnAnswer(Status(404));
  CHECK(ShowTurn(watch.OnAnswer(Status(405))) == kAzure);
  CHECK_FALSE(watch.Acknowledge());
  CHECK_THAT(ShowTurn(watch.OnAnswer(Status(200, "AzurePublicCloud"))),
             Catch::StartsWith("found: azure | GET /metadata/instance/compute/name"));
  watch.OnAnswer(Status(200, "spot"));
  REQUIRE(watch
              .OnAnswer(Status(200, R"({"Events": [{"EventId": "1", "EventType": "Preempt",)"
                                    R"( "Resources": ["spot"]}]})"))
              .notice);
  CHECK(watch.Acknowledge());
}

TEST_CASE("auto: each round asks all three, and after five rounds the search ends") {
  for (const Answer& useless : Useless()) {
    INFO(useless.status << " " << useless.body << useless.failure);
    AutoWatch watch;
    watch.Begin();
    for (const char* wait : {" +1000ms", " +5000ms", " +15000ms", " +60000ms", ""}) {
      // If the body may be a token, the watch uses it in its request for the instance.
      const bool token = IsAwsToken(useless.body) && useless.status == 200;
      CHECK(ShowTurn(watch.OnAnswer(useless)) == kToken);
      if (token) CHECK_THAT(ShowTurn(watch.OnAnswer(useless)), Catch::Contains("instance-id"));
      CHECK(ShowTurn(watch.OnAnswer(useless)) == kAzure);
      const Turn turn = watch.OnAnswer(useless);
      CHECK_THAT(turn.failure, Catch::StartsWith("no cloud's metadata service answers: gce: ") &&
                                   Catch::Contains("; aws: ") && Catch::Contains("; azure: "));
      CHECK(turn.failure.size() < 800);
      if (*wait == 0) {
        CHECK_FALSE(turn.next);
      } else {
        REQUIRE(turn.next);
        CHECK(ShowAsk(*turn.next) == kGce + wait);
        CHECK(turn.next->request.timeout <= std::chrono::seconds(2));
      }
    }
  }
}

TEST_CASE("auto: a server that answers each request with the same page is no cloud") {
  AutoWatch watch;
  watch.Begin();
  const Answer page = Status(200, "welcome");
  CHECK(ShowTurn(watch.OnAnswer(page)) == kToken);
  CHECK(ShowTurn(watch.OnAnswer(page)) == "GET /latest/meta-data/instance-id token=welcome");
  CHECK(ShowTurn(watch.OnAnswer(page)) == kAzure);
  CHECK(watch.OnAnswer(page).failure ==
        "no cloud's metadata service answers: gce: the answer is not as documented; aws: the "
        "answer is not as documented; azure: the answer is not as documented");
}

TEST_CASE("auto: a cloud that answers in a later round is found") {
  AutoWatch watch;
  watch.Begin();
  for (int i = 0; i < 3; ++i) watch.OnAnswer(Silence());
  CHECK(watch.OnAnswer(Status(200, "FALSE", {{"metadata-flavor", "Google"}})).found == "gce");
}

}  // namespace
}  // namespace evergrad::preemption

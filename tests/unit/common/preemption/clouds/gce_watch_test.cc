// Tests the requests to Compute Engine's metadata server, and every kind of answer.
#include "common/preemption/clouds/gce_watch.h"

#include <catch2/catch.hpp>

#include "tests/unit/common/preemption/clouds/transcript_fixture.h"

namespace evergrad::preemption {
namespace {

const std::string kPath = "/computeMetadata/v1/instance/preempted";
const std::string kWait = "GET " + kPath + "?wait_for_change=true&timeout_sec=60";

Answer Google(std::string value, std::string etag = "") {
  std::vector<std::pair<std::string, std::string>> headers{{"metadata-flavor", "Google"}};
  if (!etag.empty()) headers.emplace_back("etag", std::move(etag));
  return Status(200, std::move(value), std::move(headers));
}

TEST_CASE("gce: the value is read once, and then each request waits for its next change") {
  GceWatch watch;
  const Ask first = watch.Begin();
  CHECK(ShowAsk(first) == "GET " + kPath);
  CHECK(first.request.headers ==
        std::vector<std::pair<std::string, std::string>>{{"Metadata-Flavor", "Google"}});
  CHECK(ShowTurn(watch.OnAnswer(Google("FALSE", "4f00c0ffee"))) == kWait + "&last_etag=4f00c0ffee");
  Answer late = Google("FALSE\n", "5a");
  late.took = std::chrono::seconds(60);
  const Turn next = watch.OnAnswer(late);
  CHECK(ShowTurn(next) == kWait + "&last_etag=5a");
  CHECK(next.next->request.timeout > std::chrono::seconds(60));
  CHECK(ShowTurn(watch.OnAnswer(Google("TRUE", "6b"))) ==
        "notice: Compute Engine reclaims this machine within 30 s | end");
  CHECK_FALSE(watch.Acknowledge());
}

TEST_CASE("gce: a value that is TRUE at once is a notice") {
  GceWatch watch;
  watch.Begin();
  CHECK(watch.OnAnswer(Google("TRUE")).notice);
}

TEST_CASE("gce: a server that does not wait is asked once a second at most") {
  GceWatch watch;
  watch.Begin();
  CHECK(ShowTurn(watch.OnAnswer(Google("FALSE"))) == kWait);
  Answer quick = Google("FALSE");
  quick.took = std::chrono::milliseconds(300);
  CHECK(ShowTurn(watch.OnAnswer(quick)) == kWait + " +700ms");
}

TEST_CASE("gce: an ETag with other characters is not repeated to the server") {
  for (const std::string etag : {"a b", "a\r\nX: y", "&x=1", std::string(65, 'a').c_str()}) {
    GceWatch watch;
    watch.Begin();
    CHECK(ShowTurn(watch.OnAnswer(Google("FALSE", etag))) == kWait);
  }
}

TEST_CASE("gce: an answer of no use is a failure, and the value is read again at once later") {
  for (const Answer& useless : Useless()) {
    INFO(useless.status << " " << useless.body << useless.failure);
    GceWatch watch;
    watch.Begin();
    for (const char* wait : {" +1000ms", " +2000ms", " +5000ms", " +5000ms"}) {
      const Turn turn = watch.OnAnswer(useless);
      CHECK_FALSE(turn.failure.empty());
      CHECK_FALSE(turn.notice);
      CHECK(ShowAsk(*turn.next) == "GET " + kPath + wait);
    }
    CHECK(ShowTurn(watch.OnAnswer(Google("FALSE"))) == kWait);
    CHECK(ShowAsk(*watch.OnAnswer(useless).next) == "GET " + kPath + " +1000ms");
    CHECK(watch.OnAnswer(Google("TRUE")).notice);
  }
  GceWatch watch;
  watch.Begin();
  CHECK_THAT(watch.OnAnswer(Status(404)).failure, Catch::Contains("status=404"));
  CHECK_THAT(watch.OnAnswer(Status(401)).failure, Catch::Contains("status=401"));
}

TEST_CASE("gce: an answer of another server is no notice") {
  GceWatch watch;
  watch.Begin();
  CHECK(ShowTurn(watch.OnAnswer(Status(200, "TRUE"))) ==
        "failure: the answer is not from Google's metadata server | GET " + kPath + " +1000ms");
}

}  // namespace
}  // namespace evergrad::preemption

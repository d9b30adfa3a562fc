// Tests the requests to Azure's metadata service, and every kind of answer.
#include "common/preemption/clouds/azure_watch.h"

#include <catch2/catch.hpp>

#include "tests/unit/common/preemption/clouds/transcript_fixture.h"

namespace evergrad::preemption {
namespace {

const std::string kName = "GET /metadata/instance/compute/name?api-version=2021-02-01&format=text";
const std::string kEvents = "GET /metadata/scheduledevents?api-version=2020-07-01";
const std::string kAcknowledge =
    R"(POST /metadata/scheduledevents?api-version=2020-07-01 {"StartRequests":[{"EventId":"e-7"}]})";
const char* const kNone = R"({"DocumentIncarnation": 1, "Events": []})";

std::string Event(const std::string& type, const std::string& machine) {
  return R"({"EventId": "e-7", "EventType": ")" + type +
         R"(", "NotBefore": "Thu, 26 Nov 2026 21:00:30 GMT", "Resources": ["other", ")" + machine +
         R"("]})";
}
Answer Events(const std::string& events) {
  return Status(200, R"({"DocumentIncarnation": 2, "Events": [)" + events + "]}");
}

// A watch that already knows the name of its machine.
struct Named {
  AzureWatch watch;
  Named() {
    watch.Begin();
    watch.OnAnswer(Status(200, "spot_3"));
  }
};

TEST_CASE("azure: the name of the machine, then the events every second, until the notice") {
  AzureWatch watch;
  const Ask first = watch.Begin();
  CHECK(ShowAsk(first) == kName);
  CHECK(first.request.headers ==
        std::vector<std::pair<std::string, std::string>>{{"Metadata", "true"}});
  const Turn events = watch.OnAnswer(Status(200, "spot_3"));
  CHECK(ShowTurn(events) == kEvents);
  // Azure turns the service on at the first request, which therefore takes long.
  CHECK(events.next->request.timeout > std::chrono::minutes(2));
  const Turn next = watch.OnAnswer(Status(200, kNone));
  CHECK(ShowTurn(next) == kEvents + " +1000ms");
  CHECK(next.next->request.timeout <= std::chrono::seconds(5));
  CHECK_FALSE(watch.Acknowledge());  // nothing is announced yet
  CHECK(ShowTurn(watch.OnAnswer(Events(Event("Preempt", "spot_3")))) ==
        "notice: Azure reclaims this machine: event=Preempt not_before=Thu, 26 Nov 2026 21:00:30 "
        "GMT | end");
}

TEST_CASE("azure: an event of another machine or of another type is no notice") {
  for (const auto& [event, notice] :
       {std::pair<std::string, bool>{Event("Preempt", "spot_3"), true},
        {Event("Terminate", "spot_3"), true},
        {Event("Preempt", "spot_4"), false},
        {Event("Preempt", "spot_33"), false},
        {Event("Freeze", "spot_3"), false},
        {Event("Reboot", "spot_3"), false},
        {R"({"EventType": "Preempt"})", false},
        {R"({"EventType": "Preempt", "Resources": "spot_3"})", false},
        {R"({"EventType": "Preempt", "Resources": [3]})", false},
        {R"("Preempt")", false},
        {"[]", false},
        {"null", false}}) {
    INFO(event);
    Named named;
    const Turn turn = named.watch.OnAnswer(Events(event));
    CHECK(turn.notice.has_value() == notice);
    CHECK(turn.failure.empty());
    if (!notice) CHECK(ShowTurn(turn) == kEvents + " +1000ms");
  }
  Named named;  // the event of this machine comes after others
  CHECK(named.watch
            .OnAnswer(Events("7, " + Event("Freeze", "spot_3") + ", " + Event("Preempt", "spot_3")))
            .notice);
}

TEST_CASE("azure: the event is acknowledged after the drain, with three attempts at most") {
  Named named;
  REQUIRE(named.watch.OnAnswer(Events(Event("Preempt", "spot_3"))).notice);
  const auto ask = named.watch.Acknowledge();
  REQUIRE(ask);
  CHECK(ShowAsk(*ask) == kAcknowledge);
  CHECK(ShowTurn(named.watch.OnAnswer(Status(200))) == "end");
  CHECK_FALSE(named.watch.Acknowledge());

  Named again;
  REQUIRE(again.watch.OnAnswer(Events(Event("Preempt", "spot_3"))).notice);
  REQUIRE(again.watch.Acknowledge());
  CHECK(ShowTurn(again.watch.OnAnswer(Status(500))) ==
        "failure: the event is not acknowledged: unexpected status: status=500 | " + kAcknowledge +
            " +200ms");
  CHECK(ShowTurn(again.watch.OnAnswer(Silence())) ==
        "failure: the event is not acknowledged: timeout | " + kAcknowledge + " +200ms");
  CHECK(ShowTurn(again.watch.OnAnswer(Status(400))) ==
        "failure: the event is not acknowledged: unexpected status: status=400 | end");
}

TEST_CASE("azure: an event id that could break out of the acknowledgement is not acknowledged") {
  for (const char* id : {"", "a\\\"b", "a b", "7}]}"}) {
    Named named;
    REQUIRE(named.watch
                .OnAnswer(Events(absl::StrCat(R"({"EventId": ")", id,
                                              R"(", "EventType": "Preempt", "Resources": )",
                                              R"(["spot_3"]})")))
                .notice);
    CHECK_FALSE(named.watch.Acknowledge());
  }
}

TEST_CASE("azure: an answer of no use is a failure, and the same question is asked again") {
  for (const Answer& useless : Useless()) {
    INFO(useless.status << " " << useless.body << useless.failure);
    Named named;
    for (const char* wait : {" +1000ms", " +2000ms", " +5000ms", " +5000ms"}) {
      const Turn turn = named.watch.OnAnswer(useless);
      CHECK_FALSE(turn.failure.empty());
      CHECK(ShowAsk(*turn.next) == kEvents + wait);
      // The service is not turned on yet.
      CHECK(turn.next->request.timeout > std::chrono::minutes(2));
    }
    CHECK(ShowTurn(named.watch.OnAnswer(Status(200, kNone))) == kEvents + " +1000ms");
    CHECK(named.watch.OnAnswer(Events(Event("Preempt", "spot_3"))).notice);
  }
  for (const Answer& useless : {Silence(), Status(401), Status(404), Status(200),
                                Status(200, "a name"), Status(200, std::string(129, 'a'))}) {
    AzureWatch watch;
    watch.Begin();
    const Turn turn = watch.OnAnswer(useless);
    CHECK_THAT(turn.failure, Catch::StartsWith("no name of this machine: "));
    CHECK(ShowAsk(*turn.next) == kName + " +1000ms");
  }
}

}  // namespace
}  // namespace evergrad::preemption

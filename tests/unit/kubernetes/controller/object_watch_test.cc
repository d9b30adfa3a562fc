// Tests lists and watches as transcripts, with an API server that a test plays. Nothing waits.
#include "kubernetes/controller/object_watch.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/manual_executor.h"

namespace evergrad::kubernetes {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = WatchEvent::Kind;
using Transcript = std::vector<std::string>;

// Writes each wait into the transcript, and lets the time pass.
class CountedInterruption final : public http::Interruption {
 public:
  CountedInterruption(Transcript* transcript, ManualClock* clock)
      : transcript_(*transcript), clock_(*clock) {}
  bool Wait(milliseconds time) override {
    transcript_.push_back(absl::StrCat("wait ", time.count()));
    clock_.Advance(time);
    return !interrupted();
  }

 private:
  Transcript& transcript_;
  ManualClock& clock_;
};

JobObject Object(const std::string& name, const std::string& version) {
  JobObject object;
  object.name = name;
  object.uid = "u";
  object.resource_version = version;
  return object;
}

WatchEvent Event(Kind kind, const std::string& version, const std::string& name = "") {
  WatchEvent event;
  event.kind = kind;
  event.resource_version = version;
  if (!name.empty()) event.object = Object(name, version);
  return event;
}
WatchEvent ErrorEvent(absl::Status error) {
  WatchEvent event;
  event.kind = Kind::kError;
  event.error = std::move(error);
  return event;
}

// One watch: its events, its end and its length.
struct ScriptedWatch {
  std::vector<WatchEvent> events;
  absl::Status end = absl::OkStatus();
  seconds lasts{0};
};

class Stage final : public Api {
 public:
  std::deque<absl::StatusOr<JobList>> lists;
  std::deque<ScriptedWatch> watches;

  // Runs until the script has ended, and returns the calls and the waits.
  Transcript Run() {
    ObjectWatch watch({.api = this,
                       .feed = &feed,
                       .interruption = &interruption,
                       .clock = &clock,
                       .logger = &logger,
                       .metrics = &metrics,
                       .ready = readiness.Add("api_server", "begins")});
    watch.Run();
    return transcript;
  }
  std::string Taken() {
    std::string text;
    for (const auto& [name, object] : feed.Take(seconds(0)))
      absl::StrAppend(&text, text.empty() ? "" : " ", name, "=",
                      object ? object->resource_version : "-");
    return text;
  }

  absl::StatusOr<JobList> List() override {
    transcript.push_back("list");
    if (lists.empty()) return End();
    absl::StatusOr<JobList> list = std::move(lists.front());
    lists.pop_front();
    return list;
  }
  absl::Status Watch(const std::string& version, const WatchReader::OnEvent& on_event) override {
    transcript.push_back("watch " + version);
    if (watches.empty()) return End();
    const ScriptedWatch script = std::move(watches.front());
    watches.pop_front();
    for (const WatchEvent& event : script.events) on_event(event);
    clock.Advance(script.lasts);
    return script.end;
  }
  absl::StatusOr<JobObject> SetFinalizers(const JobObject&,
                                          const std::vector<std::string>&) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<JobObject> SetStatus(const JobObject&, const Json&) override {
    return absl::UnimplementedError("");
  }
  absl::Status CreateEvent(const Json&) override { return absl::UnimplementedError(""); }

  Transcript transcript;
  ManualClock clock;
  CountedInterruption interruption{&transcript, &clock};
  ObjectFeed feed;
  metrics::Registry registry;
  OperatorMetrics metrics{registry};
  health::Readiness readiness;
  log::Logger logger{[] {
    log::Options options;
    options.file = "/dev/null";
    return options;
  }()};

 private:
  absl::Status End() {
    transcript.push_back("end");
    interruption.Interrupt();
    return absl::CancelledError("interrupted");
  }
};

JobList ListOf(std::vector<JobObject> objects, const std::string& version) {
  JobList list;
  list.objects = std::move(objects);
  list.resource_version = version;
  return list;
}

// Found by reading: such a server got the next request at once.
TEST_CASE("a server that ends each watch after one event gets a request each 100 ms") {
  Stage stage;
  stage.lists = {ListOf({}, "0")};
  for (int i = 1; i <= 50; ++i)
    stage.watches.push_back({{Event(Kind::kBookmark, absl::StrCat(i))}});
  stage.Run();
  CHECK(stage.clock.Now() == milliseconds(5000));
  CHECK(stage.metrics.lists.value() == 1);
}

TEST_CASE("the pause doubles from 100 ms to 30 s") {
  const std::pair<int, int> cases[] = {{-1, 100},
                                       {0, 100},
                                       {1, 100},
                                       {2, 200},
                                       {3, 400},
                                       {8, 12'800},
                                       {9, 25'600},
                                       {10, 30'000},
                                       {11, 30'000},
                                       {1000, 30'000},
                                       {2'000'000'000, 30'000}};
  for (const auto& [failures, ms] : cases) CHECK(PauseAfter(failures) == milliseconds(ms));
}

TEST_CASE("the objects are listed, and watched from the version of the list on") {
  Stage stage;
  stage.lists = {ListOf({Object("a", "3"), Object("b", "5")}, "7")};
  stage.watches = {{{Event(Kind::kChanged, "8", "a"), Event(Kind::kRemoved, "9", "b"),
                     Event(Kind::kBookmark, "12")}},
                   {{Event(Kind::kChanged, "13", "c")}}};
  CHECK(stage.Run() ==
        Transcript{"list", "watch 7", "wait 100", "watch 12", "wait 100", "watch 13", "end"});
  CHECK(stage.Taken() == "a=8 b=- c=13");
  CHECK(stage.metrics.lists.value() == 1);
  CHECK(stage.metrics.watches.value() == 3);
  CHECK(stage.metrics.api_errors.value() == 0);
  CHECK(stage.metrics.api_reachable.value() == 1);
  CHECK(stage.readiness.Missing().empty());
}

TEST_CASE("a list that fails is tried again, less and less often") {
  Stage stage;
  for (int i = 0; i < 12; ++i) stage.lists.emplace_back(absl::UnavailableError("no route"));
  stage.lists.emplace_back(ListOf({}, "7"));
  Transcript expected;
  for (const int ms :
       {100, 200, 400, 800, 1600, 3200, 6400, 12'800, 25'600, 30'000, 30'000, 30'000})
    for (const std::string& call : {std::string("list"), absl::StrCat("wait ", ms)})
      expected.push_back(call);
  for (const char* call : {"list", "watch 7", "end"}) expected.emplace_back(call);
  CHECK(stage.Run() == expected);
  CHECK(stage.metrics.api_errors.value() == 12);
  CHECK(stage.metrics.api_reachable.value() == 1);
  CHECK(stage.readiness.Missing().empty());
}

TEST_CASE("a failure is in the metrics and in the health until the next list") {
  Stage stage;
  stage.lists = {absl::PermissionDeniedError("forbidden")};
  stage.Run();
  CHECK(stage.metrics.api_reachable.value() == 0);
  REQUIRE(stage.readiness.Missing().size() == 1);
}

TEST_CASE("a version that is too old is followed by a list, and is no failure if events came") {
  Stage stage;
  stage.lists = {ListOf({}, "7"), ListOf({Object("a", "20")}, "20"), ListOf({}, "30")};
  stage.watches = {{{Event(Kind::kBookmark, "8"), ErrorEvent(absl::OutOfRangeError("too old"))}},
                   // The server refuses the version at once: as an event, and as its answer.
                   {{ErrorEvent(absl::OutOfRangeError("too old"))}}};
  CHECK(stage.Run() == Transcript{"list", "watch 7", "wait 100", "list", "watch 20", "wait 100",
                                  "list", "watch 30", "end"});
  CHECK(stage.metrics.api_errors.value() == 1);
}

TEST_CASE("a watch that is refused is followed by a pause and a list") {
  for (const absl::Status& error :
       {absl::OutOfRangeError("too old"), absl::PermissionDeniedError("forbidden"),
        absl::UnauthenticatedError("token"), absl::UnavailableError("no route")}) {
    CAPTURE(error.message());
    Stage stage;
    stage.lists = {ListOf({}, "7"), ListOf({}, "8"), ListOf({}, "9")};
    stage.watches = {{{}, error}, {{}, error}};
    CHECK(stage.Run() == Transcript{"list", "watch 7", "wait 100", "list", "watch 8", "wait 200",
                                    "list", "watch 9", "end"});
    CHECK(stage.metrics.api_errors.value() == 2);
  }
}

TEST_CASE("a watch that is cut continues from its last version, without a list") {
  Stage stage;
  stage.lists = {ListOf({}, "7")};
  stage.watches = {{{Event(Kind::kChanged, "8", "a")}, absl::UnavailableError("cut")},
                   {{}, absl::UnavailableError("cut"), seconds(200)}};
  CHECK(stage.Run() == Transcript{"list", "watch 7", "wait 100", "watch 8", "watch 8", "end"});
  CHECK(stage.metrics.api_errors.value() == 0);
}

TEST_CASE("three watches in a row that end at once are a failure, and those that lasted are none") {
  Stage stage;
  stage.lists = {ListOf({}, "7"), ListOf({}, "8")};
  const auto at_once = [] { return ScriptedWatch{{}, absl::OkStatus(), seconds(0)}; };
  stage.watches = {at_once(), at_once(), {{}, absl::OkStatus(), seconds(240)},
                   at_once(), at_once(), at_once()};
  CHECK(stage.Run() == Transcript{"list", "watch 7", "wait 100", "watch 7", "wait 100", "watch 7",
                                  "watch 7", "wait 100", "watch 7", "wait 100", "watch 7",
                                  "wait 100", "list", "watch 8", "end"});
  CHECK(stage.metrics.api_errors.value() == 1);
}

TEST_CASE("another error event ends the watch with a failure") {
  Stage stage;
  stage.lists = {ListOf({}, "7"), ListOf({}, "8")};
  stage.watches = {{{Event(Kind::kBookmark, "9"), ErrorEvent(absl::UnavailableError("internal"))}}};
  CHECK(stage.Run() == Transcript{"list", "watch 7", "wait 100", "list", "watch 8", "end"});
  CHECK(stage.metrics.api_errors.value() == 1);
}

TEST_CASE("a watch whose line is too long is followed by a list") {
  Stage stage;
  stage.lists = {ListOf({}, "7"), ListOf({}, "8")};
  stage.watches = {{{Event(Kind::kBookmark, "9")}, absl::CancelledError("the receiver ended it")}};
  CHECK(stage.Run() == Transcript{"list", "watch 7", "wait 100", "list", "watch 8", "end"});
}

TEST_CASE("events and objects that cannot be read are counted, and their versions are used") {
  Stage stage;
  JobList list = ListOf({Object("a", "1")}, "7");
  list.unreadable = 2;
  stage.lists = {std::move(list)};
  WatchEvent unreadable = Event(Kind::kUnreadable, "9");
  unreadable.error = absl::InvalidArgumentError("no uid");
  WatchEvent without_version = unreadable;
  without_version.resource_version = "";
  stage.watches = {{{unreadable, without_version}}};
  CHECK(stage.Run() == Transcript{"list", "watch 7", "wait 100", "watch 9", "end"});
  CHECK(stage.metrics.unreadable.value() == 4);
  CHECK(stage.Taken() == "a=1");
}

TEST_CASE("an interruption during a list ends the thread without a watch") {
  Stage stage;
  CHECK(stage.Run() == Transcript{"list", "end", "wait 100"});
}

}  // namespace
}  // namespace evergrad::kubernetes

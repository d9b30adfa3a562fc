// Tests the reports about every shard at the end of a job: the servers that are asked for a report,
// the number of requests, and the status of the job meanwhile.
#include <algorithm>
#include <catch2/catch.hpp>

#include "job_fixture.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A job whose servers send their reports only when the test calls Answer.
struct Slow {
  FakeCluster c;
  std::vector<std::pair<TaskId, v1::CoordinatorMessage>> asked;
  bool holds = true;
  explicit Slow(int servers = 2) {
    c.lose = [this](const FakeServer& server, const v1::CoordinatorMessage& message) {
      if (!message.has_report_shards() || !holds) return false;
      asked.emplace_back(server.task, message);
      return true;
    };
    for (int i = 0; i < servers; ++i) c.AddServer(std::to_string(i));
    c.AddWorker("0");
    c.job->Start();
    REQUIRE(c.Run([&] { return asked.size() == static_cast<std::size_t>(servers); }, seconds(60)));
  }
  void Wait(milliseconds span) {
    c.Run([] { return false; }, span);
  }
  std::size_t AskedOf(const std::string& identity) const {
    return static_cast<std::size_t>(std::count_if(asked.begin(), asked.end(), [&](const auto& one) {
      return one.first == c.servers.at(identity).task;
    }));
  }
  // The server answers the oldest request that it has received.
  void Answer(const std::string& identity) {
    holds = false;
    for (const auto& [task, message] : asked) {
      if (task != c.servers.at(identity).task) continue;
      c.host.Send(task, message);
      break;
    }
    c.Deliver();
    holds = true;
  }
};

}  // namespace

TEST_CASE(
    "a server that needs longer than report_timeout for its report is asked once, and the job "
    "ends") {
  Slow slow;
  FakeCluster& c = slow.c;
  slow.Wait(10 * c.options.report_timeout);
  CHECK(slow.asked.size() == 2);
  CHECK_FALSE(c.job->ended());
  CHECK(c.Status().phase() == "reporting");
  CHECK(c.job->WaitingFor() == "2 shards to be summed by ps_server/0, 2 shards by ps_server/1");
  slow.Answer("0");
  CHECK(c.job->WaitingFor() == "2 shards to be summed by ps_server/1");
  slow.Wait(10 * c.options.report_timeout);
  CHECK(slow.asked.size() == 2);
  slow.Answer("1");
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
}

TEST_CASE(
    "a server that disconnected while it summed is asked again when it is back, and no other "
    "server is") {
  Slow slow;
  FakeCluster& c = slow.c;
  c.job->OnServerAway(c.servers["1"].task, "its session closed");
  slow.Wait(seconds(7));
  CHECK_THAT(c.job->WaitingFor(), Contains("ps_server/1 has been disconnected for"));
  CHECK(slow.asked.size() == 2);
  c.AddServer("1", true);
  slow.Wait(seconds(12));
  CHECK(slow.asked.size() == 3);
  CHECK(slow.AskedOf("1") == 1);
  slow.Answer("0");
  slow.Answer("1");
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
}

TEST_CASE("a server that was silent when the report began is asked once it responds again") {
  FakeCluster c;
  int asked = 0;
  c.lose = [&](const FakeServer& server, const v1::CoordinatorMessage& message) {
    asked += message.has_report_shards() && server.identity == "1";
    return false;
  };
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::EXPORT; };
  c.AddServer("0");
  c.AddServer("1");
  c.AddWorker("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
  c.Run([] { return false; }, milliseconds(100));
  c.job->OnServerAway(c.servers["1"].task, "no word from it for 2 s");
  c.FinishHeld(c.workers["0"]);
  c.Run([] { return false; }, seconds(3));
  REQUIRE(c.Status().phase() == "reporting");
  CHECK(asked == 0);
  v1::TaskMessage beat;
  beat.mutable_heartbeat()->mutable_server();
  c.Say(c.servers["1"].task, beat);
  REQUIRE(c.Run([&] { return c.job->ended(); }, seconds(8)));
  CHECK(asked == 1);
  CHECK(c.job->state() == JobState::kSucceeded);
}

TEST_CASE(
    "a server that is lost while it sums voids the report, and the job ends with the remaining "
    "state") {
  Slow slow;
  FakeCluster& c = slow.c;
  slow.holds = false;
  const TaskId lost = c.servers["1"].task;
  c.servers.erase("1");
  c.job->OnServerAway(lost, "its session closed");
  c.job->OnServerLost(lost, "1", "it did not come back", false);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  CHECK(c.servers["0"].ended);
  CHECK_THAT(AllEvents(c), Contains("reporting begins again"));
}

}  // namespace evergrad::coordinator

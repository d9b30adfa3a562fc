#include "worker/runner/reach_log.h"

#include <catch2/catch.hpp>

#include "common/client/protocol.h"

namespace evergrad::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE(
    "a server that does not answer is reported with the time since the first failure, until it "
    "answers, moves or is not needed") {
  ReachLog log;
  const auto said = [&](int at) {
    v1::WorkerProgress progress;
    log.Fill(seconds(at), &progress);
    return progress;
  };
  CHECK(said(0).unreached_size() == 0);
  log.Failed("1", "10.0.0.1:4000", absl::UnavailableError("refused\n"), seconds(10));
  log.Failed("1", "10.0.0.1:4000", absl::UnavailableError("timed out"), seconds(14));
  log.Failed("2", "10.0.0.2:4000", absl::UnavailableError("timed out"), seconds(14));
  v1::WorkerProgress progress = said(16);
  REQUIRE(progress.unreached_size() == 2);
  CHECK(progress.unreached(0).server() == "1");
  CHECK(progress.unreached(0).address() == "10.0.0.1:4000");
  CHECK(progress.unreached(0).for_ms() == 6000);
  CHECK(progress.unreached(0).reason() == "timed out");
  CHECK(progress.unreached(1).for_ms() == 2000);
  // The server was restarted at another address.
  log.Failed("1", "10.0.0.9:4000", absl::UnavailableError("timed out"), seconds(17));
  CHECK(said(18).unreached(0).for_ms() == 1000);
  log.Answered("1", seconds(18));
  CHECK(said(18).unreached(0).server() == "2");
  log.Keep({"1"});
  CHECK(said(18).unreached_size() == 0);
}

TEST_CASE("a slow server counts as reachable") {
  ReachLog log;
  log.Failed("1", "10.0.0.1:4000", absl::DeadlineExceededError("data call: deadline exceeded"),
             seconds(10));
  v1::WorkerProgress progress;
  log.Fill(seconds(100), &progress);
  CHECK(progress.unreached_size() == 0);
}

TEST_CASE(
    "the server whose answer takes longest is reported, across failed calls, until it answers") {
  ReachLog log;
  const auto awaits = [&](int at) {
    v1::WorkerProgress progress;
    log.Fill(seconds(at), &progress);
    return progress.awaits();
  };
  log.Asked("1", seconds(10));
  log.Asked("0", seconds(11));
  CHECK(awaits(11).empty());
  CHECK(awaits(12) == "ps_server/1 for 2 s");
  log.Ended("1");
  log.Failed("1", "10.0.0.1:4000", absl::UnavailableError("timed out"), seconds(20));
  CHECK(awaits(20) == "ps_server/1 for 10 s");
  log.Asked("1", seconds(21));
  log.Asked("1", seconds(21));
  CHECK(awaits(24) == "ps_server/1 for 14 s");
  log.Ended("1");
  log.Answered("1", seconds(25));  // one of two servers has answered
  CHECK(awaits(25) == "ps_server/0 for 14 s");
  log.Ended("0");
  log.Answered("0", seconds(26));
  CHECK(awaits(26).empty());
  CHECK(awaits(27) == "ps_server/1 for 2 s");
  log.Ended("1");
  log.Answered("1", seconds(28));
  CHECK(awaits(90).empty());
  log.Asked("2", seconds(90));
  log.Keep({"0", "1"});
  CHECK(awaits(99).empty());
}

TEST_CASE("a heartbeat names a bounded number of servers, with bounded reasons") {
  ReachLog log;
  for (int i = 0; i < 200; ++i)
    log.Failed(std::to_string(i), "a", absl::UnavailableError(std::string(10'000, 'x')),
               seconds(1));
  v1::WorkerProgress progress;
  log.Fill(seconds(2), &progress);
  CHECK(progress.unreached_size() == client::kUnreachedServersMax);
  CHECK(progress.ByteSizeLong() < 64 * 300);
}

}  // namespace
}  // namespace evergrad::worker

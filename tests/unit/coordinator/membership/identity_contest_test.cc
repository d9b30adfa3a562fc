// Tests the report that two processes with the same name replace each other.
#include <catch2/catch.hpp>

#include "coordinator/membership/identity_contest.h"

using namespace evergrad;
using namespace evergrad::coordinator;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("two hosts whose workers replace each other repeatedly are both named, once a minute") {
  IdentityContest contest;
  MonoTime now = seconds(10);
  int said = 0;
  std::string first;
  // Each host replaces the other 9 times in 10 s.
  for (int i = 0; i < 180; ++i, now += milliseconds(550)) {
    const IdentityContest::Process a{"host-a", 100 + i}, b{"host-b", 200 + i};
    const auto text = contest.OnReplaced(now, "worker/0", i % 2 == 0 ? a : b, i % 2 == 0 ? b : a);
    if (text && said++ == 0) first = *text;
  }
  CHECK(said == 2);  // two reports in 99 s
  INFO(first);
  CHECK(first.find("worker/0") != std::string::npos);
  CHECK(first.find("pid 202 on host host-b") != std::string::npos);
  CHECK(first.find("pid 102 on host host-a") != std::string::npos);
  CHECK(first.find("--name") != std::string::npos);
}

TEST_CASE("a worker that restarts occasionally before its old session has ended is no contest") {
  IdentityContest contest;
  MonoTime now = seconds(10);
  for (int i = 0; i < 50; ++i, now += seconds(16))
    CHECK_FALSE(contest.OnReplaced(now, "worker/0", {"h", i}, {"h", i + 1}));
}

TEST_CASE("any number of contested names uses a bounded table, and a contest is still detected") {
  IdentityContest contest;
  MonoTime now = seconds(10);
  for (int i = 0; i < 10000; ++i)
    CHECK_FALSE(contest.OnReplaced(now, "worker/f" + std::to_string(i), {"h", 1}, {"h", 2}));
  CHECK_FALSE(contest.OnReplaced(now, "worker/0", {"a", 1}, {"b", 2}));
  CHECK_FALSE(contest.OnReplaced(now, "worker/0", {"b", 2}, {"a", 3}));
  CHECK(contest.OnReplaced(now, "worker/0", {"a", 3}, {"b", 4}));
}

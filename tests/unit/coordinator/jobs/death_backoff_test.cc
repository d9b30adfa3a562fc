// Tests the backoff of tasks that have died repeatedly: they get no work for a while.
#include <catch2/catch.hpp>

#include "coordinator/jobs/death_backoff.h"

using namespace evergrad;
using namespace evergrad::coordinator;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE(
    "three consecutive deaths cause no delay, and each further one doubles the delay, up to a "
    "minute") {
  DeathBackoff backoff;
  MonoTime now = seconds(100);
  for (int i = 0; i < 3; ++i) {
    CHECK(backoff.OnDeath(now, Role::kWorker, "2", "its session closed", "far") == nullptr);
    CHECK(backoff.Until(Role::kWorker, "2") <= now);
  }
  for (const int want : {1, 2, 4, 8, 16, 32, 60, 60, 60}) {
    now += seconds(100);
    const DeathBackoff::Record* record =
        backoff.OnDeath(now, Role::kWorker, "2", "its session closed", "far");
    REQUIRE(record != nullptr);
    CHECK(record->until - now == seconds(want));
    CHECK(backoff.Until(Role::kWorker, "2") == now + seconds(want));
  }
  REQUIRE(backoff.Shown(now).size() == 1);
  CHECK(backoff.Shown(now)[0].deaths == 12);
  CHECK(backoff.Shown(now)[0].reason == "its session closed");
  CHECK(backoff.Shown(now)[0].host == "far");
}

TEST_CASE(
    "finished work clears the record of its task, and a closure clears those of all servers that "
    "own shards") {
  DeathBackoff backoff;
  const MonoTime now = seconds(1);
  for (int i = 0; i < 5; ++i) {
    for (const char* name : {"0", "1"}) {
      backoff.OnDeath(now, Role::kWorker, name, "", "");
      backoff.OnDeath(now, Role::kPsServer, name, "", "");
    }
  }
  backoff.OnProgress(Role::kWorker, "0");
  CHECK(backoff.Until(Role::kWorker, "0") == MonoTime{0});
  CHECK(backoff.Until(Role::kWorker, "1") > now);
  CHECK(backoff.Until(Role::kPsServer, "0") > now);
  backoff.OnProgressOf(Role::kPsServer, {"0", "7"});
  CHECK(backoff.Until(Role::kPsServer, "0") == MonoTime{0});
  CHECK(backoff.Until(Role::kPsServer, "1") > now);
  CHECK(backoff.Until(Role::kWorker, "1") > now);
  // The count of deaths starts from 0 again.
  CHECK(backoff.OnDeath(now, Role::kWorker, "0", "", "") == nullptr);
}

TEST_CASE("deaths without work are counted separately and cause no longer delay") {
  DeathBackoff backoff;
  MonoTime now = seconds(1);
  for (int i = 0; i < 4; ++i) backoff.OnDeath(now, Role::kWorker, "2", "", "");
  const MonoTime until = backoff.Until(Role::kWorker, "2");
  for (int i = 0; i < 50; ++i) {
    now += milliseconds(10);
    backoff.OnIdleDeath(now, Role::kWorker, "2");
    backoff.OnIdleDeath(now, Role::kWorker, "never heard of");
  }
  CHECK(backoff.Until(Role::kWorker, "2") == until);
  REQUIRE(backoff.Shown(now).size() == 1);
  CHECK(backoff.Shown(now)[0].deaths == 4);
  CHECK(backoff.Shown(now)[0].idle_deaths == 50);
}

TEST_CASE("each death of a server without work restarts its delay, but does not lengthen it") {
  DeathBackoff backoff;
  MonoTime now = seconds(1);
  for (int i = 0; i < 3; ++i) backoff.OnDeath(now, Role::kPsServer, "2", "", "");
  backoff.OnIdleDeath(now, Role::kPsServer, "2");
  CHECK_FALSE(backoff.Counts(now, Role::kPsServer, "2"));  // three deaths cause no backoff yet
  CHECK(backoff.Until(Role::kPsServer, "2") <= now);
  for (int i = 0; i < 2; ++i) backoff.OnDeath(now, Role::kPsServer, "2", "", "");
  CHECK(backoff.Until(Role::kPsServer, "2") == now + seconds(2));
  for (int i = 0; i < 50; ++i) {
    now += seconds(20);
    CHECK(backoff.Counts(now, Role::kPsServer, "2"));
    backoff.OnIdleDeath(now, Role::kPsServer, "2");
    CHECK(backoff.Until(Role::kPsServer, "2") == now + seconds(2));
  }
  CHECK_FALSE(backoff.Counts(now + seconds(601), Role::kPsServer, "2"));
  CHECK_FALSE(backoff.Counts(now, Role::kWorker, "2"));
}

TEST_CASE("the table is bounded, and a record expires after ten minutes without a death") {
  DeathBackoff::Options options;
  options.tasks_max = 10;
  DeathBackoff backoff(options);
  MonoTime now = seconds(1);
  for (int i = 0; i < 4; ++i) backoff.OnDeath(now, Role::kWorker, "mine", "", "");
  for (int i = 0; i < 9; ++i)
    backoff.OnDeath(now += milliseconds(1), Role::kWorker, "f" + std::to_string(i), "", "");
  CHECK(backoff.size() == 10);
  CHECK(backoff.Until(Role::kWorker, "mine") > now);
  for (int i = 9; i < 1000; ++i)
    backoff.OnDeath(now += milliseconds(1), Role::kWorker, "f" + std::to_string(i), "", "");
  CHECK(backoff.size() == 10);
  // If a task that is already in the full table dies, no other task is removed from the table.
  backoff.OnDeath(now, Role::kWorker, "f999", "", "");
  CHECK(backoff.size() == 10);
  for (int i = 0; i < 4; ++i) backoff.OnDeath(now, Role::kWorker, "mine", "", "");
  now += seconds(601);
  CHECK(backoff.Shown(now).empty());
  CHECK(backoff.OnDeath(now, Role::kWorker, "mine", "", "") == nullptr);
  CHECK(backoff.size() == 1);
}

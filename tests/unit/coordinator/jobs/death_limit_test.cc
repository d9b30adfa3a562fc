// Tests the limit of deaths that a job tolerates without progress.
#include <catch2/catch.hpp>

#include "coordinator/jobs/death_backoff.h"

using namespace evergrad;
using namespace evergrad::coordinator;
using Again = DeathLimit::Again;

TEST_CASE("the count of deaths restarts when a closure succeeds for the first time") {
  DeathLimit limit;
  for (int day = 0; day < 100; ++day) {
    limit.OnDeaths(10);
    CHECK(limit.deaths() == 10);
    limit.OnFirstSuccess();
    CHECK(limit.deaths() == 0);
  }
}

TEST_CASE("a repair is progress if fewer repairs remain than ever before") {
  DeathLimit limit;
  for (std::uint64_t left = 1000; left > 0; --left) {
    limit.OnDeaths(2);
    CHECK(limit.OnLeft(Again::kRepairs, left - 1));
    CHECK(limit.deaths() == 0);
  }
}

TEST_CASE("a server that is rolled back repeatedly before its repairs are done reaches the limit") {
  DeathLimit limit;
  std::uint32_t most = 0;
  for (int life = 0; life < 200; ++life) {
    limit.OnDeaths(1);
    // In each life the same three of the 50 repairs succeed, so there is no progress.
    for (const std::uint64_t left : {49, 48, 47}) limit.OnLeft(Again::kRepairs, left);
    most = std::max(most, limit.deaths());
  }
  CHECK(most == 199);
  // A closure that succeeds for the first time restarts the count of deaths and the comparison of
  // repairs.
  limit.OnFirstSuccess();
  limit.OnDeaths(1);
  CHECK(limit.OnLeft(Again::kRepairs, 49));
  CHECK(limit.deaths() == 0);
}

TEST_CASE("a restarted evaluation or export is progress only beyond its former maximum") {
  DeathLimit limit;
  limit.OnFirstSuccess();
  limit.OnDeaths(1);
  CHECK(limit.OnLeft(Again::kEvaluation, 3));
  CHECK(limit.OnLeft(Again::kEvaluation, 2));
  limit.OnDeaths(4);
  CHECK_FALSE(limit.OnLeft(Again::kEvaluation, 3));  // the evaluation starts from its beginning
  CHECK_FALSE(limit.OnLeft(Again::kEvaluation, 2));
  CHECK(limit.deaths() == 4);
  CHECK(limit.OnLeft(Again::kEvaluation, 1));
  CHECK(limit.OnLeft(Again::kEvaluation, 0));
  limit.OnDeaths(1);
  CHECK(limit.OnLeft(Again::kExport, 0));
  limit.OnDeaths(1);
  CHECK_FALSE(limit.OnLeft(Again::kExport, 0));
  CHECK(limit.deaths() == 1);
}

TEST_CASE("the count continues after a restart of the coordinator") {
  DeathLimit limit;
  limit.Restore(70);
  limit.OnDeaths(5);
  CHECK(limit.deaths() == 75);
}

// Each rule of LEDGER.md left out must be seen, and seen as what it breaks: a check that cannot fail proves nothing.
#include <catch2/catch.hpp>

#include <set>
#include <string>

#include "tests/simulation/cluster.h"

namespace evergrad::simulation {
namespace {

using fault::Mutant;

// Walks seeds until one shows a violation, at most `seeds_max`.
std::string FirstViolation(Mutant mutant, std::uint64_t seeds_max) {
  for (std::uint64_t seed = 0; seed < seeds_max; ++seed) {
    const WalkResult result = Walk(WalkOptions::FromSeed(seed, mutant));
    if (result.violation.empty()) continue;
    INFO("seed " << seed);
    return result.violation;
  }
  return "";
}

TEST_CASE("ledger_off is caught") { CHECK_THAT(FirstViolation(Mutant::kLedgerOff, 20), Catch::StartsWith("I1 applied twice")); }
TEST_CASE("watermark_only is caught") {
  CHECK_THAT(FirstViolation(Mutant::kWatermarkOnly, 20), Catch::StartsWith("I3 done but missing") || Catch::StartsWith("I7"));
}
TEST_CASE("no_todo is caught") { CHECK_THAT(FirstViolation(Mutant::kNoTodo, 50), Catch::StartsWith("I3 done but missing")); }
TEST_CASE("done_ignores_V0 is caught") { CHECK_THAT(FirstViolation(Mutant::kDoneIgnoresV0, 50), Catch::StartsWith("I3 done but missing")); }
TEST_CASE("V0_at_end is caught") { CHECK_THAT(FirstViolation(Mutant::kV0AtEnd, 50), Catch::StartsWith("I3 done but missing")); }
TEST_CASE("close_ignores_todo is caught") { CHECK_THAT(FirstViolation(Mutant::kCloseIgnoresTodo, 50), Catch::StartsWith("I3 done but missing")); }
TEST_CASE("done_before_settled is caught") { CHECK_THAT(FirstViolation(Mutant::kDoneBeforeSettled, 20), Catch::StartsWith("I3 done but missing")); }
TEST_CASE("no_epoch_check is caught") {
  CHECK_THAT(FirstViolation(Mutant::kNoEpochCheck, 50), Catch::StartsWith("I5 two processes") || Catch::StartsWith("I3"));
}
TEST_CASE("register_one_way is caught") { CHECK_THAT(FirstViolation(Mutant::kRegisterOneWay, 50), Catch::StartsWith("I8 not quiet")); }
TEST_CASE("no_attempt_fence is caught by I9") {
  CHECK_THAT(FirstViolation(Mutant::kNoAttemptFence, 200), Catch::StartsWith("I9 a lower attempt was applied"));
}

TEST_CASE("a seed is a walk: replayed, it gives the same counts") {
  for (const std::uint64_t seed : {3u, 4u, 7u}) {
    const WalkResult first = Walk(WalkOptions::FromSeed(seed)), again = Walk(WalkOptions::FromSeed(seed));
    CHECK(first.violation == "");
    CHECK(first.events == again.events);
    CHECK(first.counts == again.counts);
  }
}

TEST_CASE("the walks meet every fault and every answer") {
  std::set<std::string> met;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const WalkResult result = Walk(WalkOptions::FromSeed(seed));
    INFO("seed " << seed);
    CHECK(result.violation == "");
    for (const auto& [what, n] : result.counts) met.insert(what);
  }
  for (const char* what : {"applied",           "duplicate",          "attempt superseded", "call doubled",   "call lost",
                           "closure cancelled", "coordinator killed", "journal torn",       "move",           "older snapshot",
                           "pull unchanged",    "repair failed",      "repair granted",     "rollback",       "rolled back to the seed",
                           "server doubled",    "server killed",      "session cut",        "shard not held", "snapshot",
                           "worker killed"}) {
    INFO(what);
    CHECK(met.contains(what));
  }
}

}  // namespace
}  // namespace evergrad::simulation

// Tests the rule that decides which closure kills its workers. At each death the rule gets the
// closure and the step that the worker had reported as running, or nothing.
#include <catch2/catch.hpp>

#include "coordinator/jobs/poison.h"

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

struct Death {
  int at_ms;
  int closure;  // -1 if the worker had reported no closure as running
  std::uint32_t step;
};

// Returns the rule's verdict after the last of these deaths.
PoisonRule::Verdict After(const std::vector<Death>& deaths,
                          const std::vector<int>& ended_before = {}) {
  PoisonRule rule({3, std::chrono::milliseconds(200)});
  PoisonRule::Verdict sum;
  std::size_t i = 0;
  for (const Death& d : deaths) {
    const MonoTime now = std::chrono::milliseconds(d.at_ms);
    const PoisonRule::Verdict v = rule.Judge(now);
    if (v.poison && !sum.poison) sum.poison = v.poison;
    sum.others += v.others;
    if (i < ended_before.size() && ended_before[i] >= 0)
      rule.OnEnded(ClosureId(static_cast<std::uint64_t>(ended_before[i])));
    ++i;
    rule.OnDeath(now, d.closure < 0
                          ? std::nullopt
                          : std::optional(PoisonRule::Running{
                                ClosureId(static_cast<std::uint64_t>(d.closure)), d.step}));
  }
  const PoisonRule::Verdict v = rule.Judge(std::chrono::hours(1));
  if (v.poison && !sum.poison) sum.poison = v.poison;
  sum.others += v.others;
  return sum;
}

}  // namespace

TEST_CASE("three consecutive deaths at one step make a closure poison") {
  const auto v = After({{1000, 5, 2}, {2000, 5, 2}, {3000, 5, 2}});
  REQUIRE(v.poison);
  CHECK(v.poison->closure == ClosureId(5));
  CHECK(v.poison->step == 2);
  CHECK(v.others == 0);
}

TEST_CASE("an advance, an end or another closure in between clears the count") {
  CHECK_FALSE(After({{1000, 5, 2}, {2000, 5, 2}}).poison);
  CHECK_FALSE(After({{1000, 5, 2}, {2000, 5, 3}, {3000, 5, 4}}).poison);
  CHECK_FALSE(After({{1000, 5, 2}, {2000, 5, 2}, {3000, 5, 3}, {4000, 5, 3}}).poison);
  CHECK_FALSE(After({{1000, 5, 2}, {2000, 5, 2}, {3000, 5, 2}}, {-1, -1, 5}).poison);
  // Deaths in one closure do not affect the count of another closure.
  CHECK(After({{1000, 5, 2}, {1500, 6, 2}, {2000, 5, 2}, {2500, 6, 1}, {3000, 5, 2}}).poison);
}

TEST_CASE("simultaneous deaths, and deaths without a closure, blame no closure but are counted") {
  const auto host_down =
      After({{1000, 5, 2}, {1100, -1, 0}, {2000, 5, 2}, {2100, 7, 1}, {3000, 5, 2}, {3199, -1, 0}});
  CHECK_FALSE(host_down.poison);
  CHECK(host_down.others == 6);
  CHECK(After({{1000, -1, 0}, {2000, -1, 0}, {3000, -1, 0}}).others == 3);
}

TEST_CASE("deaths of several workers by one closure are no coincidence, even in quick succession") {
  CHECK(After({{1000, 5, 2}, {1050, 5, 2}, {1100, 5, 2}}).poison);
  CHECK(After({{1000, 5, 2}, {1150, 5, 2}, {1400, 5, 2}}).poison);
}

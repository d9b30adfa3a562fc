// Compares IntervalSet with a simple second implementation: a std::set of every member.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "common/base/interval_set.h"

namespace evergrad {
namespace {

using Dumb = std::set<std::uint64_t>;

Dumb MembersOf(const IntervalSet& set) {
  Dumb members;
  for (const auto& i : set.Intervals()) {
    for (std::uint64_t m = i.begin; m < i.end; ++m) members.insert(m);
  }
  return members;
}

// Returns whether the ranges are disjoint, not adjacent, not empty and in rising order. Two equal
// sets then have equal ranges.
bool IsCanonical(const IntervalSet& set) {
  const auto all = set.Intervals();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].begin >= all[i].end) return false;
    if (i > 0 && all[i].begin <= all[i - 1].end) return false;
  }
  return true;
}

// The members are below a small number, so that ranges meet, touch and contain each other.
constexpr std::uint64_t kUniverse = 48;

IntervalSet RandomSet(std::mt19937_64& random) {
  IntervalSet set;
  for (std::uint64_t n = random() % 6; n > 0; --n) {
    const std::uint64_t begin = random() % kUniverse;
    set.AddRange(begin, begin + random() % 10);
  }
  return set;
}

TEST_CASE("an interval set agrees with a set of numbers after seeded random operations") {
  const std::uint64_t seed = GENERATE(1u, 2u, 3u, 4u, 5u);
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  IntervalSet set;
  Dumb dumb;
  for (int step = 0; step < 4000; ++step) {
    const Dumb before = dumb;
    const std::uint64_t begin = random() % kUniverse, end = begin + random() % 8;
    bool said_changed = false;
    switch (random() % 7) {
      case 0:
      case 1:
        said_changed = set.AddRange(begin, end);
        for (std::uint64_t m = begin; m < end; ++m) dumb.insert(m);
        break;
      case 2:
        said_changed = set.RemoveRange(begin, end);
        for (std::uint64_t m = begin; m < end; ++m) dumb.erase(m);
        break;
      case 3:
        said_changed = set.Add(begin);
        dumb.insert(begin);
        break;
      case 4:
        said_changed = set.Remove(begin);
        dumb.erase(begin);
        break;
      case 5: {
        const IntervalSet other = RandomSet(random);
        said_changed = set.UnionWith(other);
        for (std::uint64_t m : MembersOf(other)) dumb.insert(m);
        break;
      }
      case 6: {
        const IntervalSet other = RandomSet(random);
        said_changed = set.Subtract(other);
        for (std::uint64_t m : MembersOf(other)) dumb.erase(m);
        break;
      }
    }
    REQUIRE(IsCanonical(set));
    REQUIRE(MembersOf(set) == dumb);
    REQUIRE(said_changed == (before != dumb));
    REQUIRE(set.size() == dumb.size());
    REQUIRE(set.empty() == dumb.empty());
    const std::uint64_t probe = random() % (kUniverse + 10);
    REQUIRE(set.Contains(probe) == (dumb.count(probe) == 1));
    REQUIRE(set.First() ==
            (dumb.empty() ? std::nullopt : std::optional<std::uint64_t>(*dumb.begin())));
    std::uint64_t missing = probe;
    while (dumb.count(missing) == 1) ++missing;
    REQUIRE(set.FirstMissing(probe) == missing);
  }
}

TEST_CASE(
    "union, difference and intersection of two interval sets agree with those of their members") {
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    const IntervalSet a = RandomSet(random), b = RandomSet(random);
    const Dumb da = MembersOf(a), db = MembersOf(b);
    Dumb both, either = da, without;
    either.insert(db.begin(), db.end());
    std::set_intersection(da.begin(), da.end(), db.begin(), db.end(),
                          std::inserter(both, both.end()));
    std::set_difference(da.begin(), da.end(), db.begin(), db.end(),
                        std::inserter(without, without.end()));
    REQUIRE(MembersOf(a.Union(b)) == either);
    REQUIRE(MembersOf(a.Intersect(b)) == both);
    REQUIRE(MembersOf(a.Minus(b)) == without);
    REQUIRE(a.ContainsAll(b) == std::includes(da.begin(), da.end(), db.begin(), db.end()));
    REQUIRE((a == b) == (da == db));
    REQUIRE(IsCanonical(a.Union(b)));
    REQUIRE(IsCanonical(a.Intersect(b)));
    REQUIRE(IsCanonical(a.Minus(b)));
  }
}

TEST_CASE("an interval set prints inclusive ranges") {
  CHECK(IntervalSet().ToString() == "");
  CHECK(IntervalSet({7, 0, 1, 2, 3, 4, 10, 9, 11}).ToString() == "0-4,7,9-11");
}

TEST_CASE("a million consecutive numbers are one interval, in whatever order they were added") {
  IntervalSet set;
  for (std::uint64_t i = 0; i < 1000000; i += 2) set.Add(i + 1);
  CHECK(set.interval_count() == 500000);
  for (std::uint64_t i = 0; i < 1000000; i += 2) set.Add(i);
  CHECK(set.interval_count() == 1);
  CHECK(set.size() == 1000000);
}

TEST_CASE("an interval set finds its first member at or above a number") {
  IntervalSet set = IntervalSet::Range(3, 6);
  set.Add(9);
  CHECK(set.FirstAtLeast(0) == 3u);
  CHECK(set.FirstAtLeast(3) == 3u);
  CHECK(set.FirstAtLeast(5) == 5u);
  CHECK(set.FirstAtLeast(6) == 9u);
  CHECK(set.FirstAtLeast(9) == 9u);
  CHECK_FALSE(set.FirstAtLeast(10).has_value());
  CHECK_FALSE(IntervalSet().FirstAtLeast(0).has_value());
}

}  // namespace
}  // namespace evergrad

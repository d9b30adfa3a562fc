#include "ps_server/ledger/ledger.h"

#include <catch2/catch.hpp>

#include <map>
#include <random>
#include <set>

namespace evergrad::ps_server {
namespace {

constexpr ClosureId kC{7};
Attempt A(std::uint64_t n) { return {1, n}; }

TEST_CASE("the ledger answers with the first matching rule of its table") {
  struct Row {
    const char* what;
    bool done, refused, open, bit;
    std::uint64_t seen, attempt;
    Admission want;
    std::uint64_t seen_after;
  };
  const Row rows[] = {
      {"nothing is known", false, false, false, false, 0, 5, Admission::kAdmit, 0},
      {"done", true, false, false, false, 0, 5, Admission::kDuplicate, 0},
      {"refused", false, true, false, false, 0, 5, Admission::kRefused, 0},
      {"done before refused", true, true, false, false, 0, 5, Admission::kDuplicate, 0},
      {"another update of the closure, same attempt", false, false, true, false, 5, 5,
       Admission::kAdmit, 5},
      {"another update, higher attempt", false, false, true, false, 5, 6, Admission::kAdmit, 5},
      {"another update, lower attempt", false, false, true, false, 5, 4, Admission::kSuperseded, 5},
      {"the same update, same attempt", false, false, true, true, 5, 5, Admission::kDuplicate, 5},
      {"the same update, higher attempt, which is remembered", false, false, true, true, 5, 6,
       Admission::kDuplicate, 6},
      {"the same update, lower attempt: the fence comes before the bit", false, false, true, true,
       5, 4, Admission::kSuperseded, 5},
  };
  for (const Row& row : rows) {
    INFO(row.what);
    Ledger ledger;
    if (row.open) ledger.Record(kC, UpdateIndex(row.bit ? 3 : 9), A(row.seen));
    ledger.Close(row.done ? IntervalSet{7} : IntervalSet{},
                 row.refused ? IntervalSet{7} : IntervalSet{});
    CHECK(ledger.Check(kC, UpdateIndex(3), A(row.attempt)) == row.want);
    CHECK(ledger.open().contains(kC) == row.open);
    if (row.open) CHECK(ledger.open().at(kC).attempt == A(row.seen_after));
  }
}

TEST_CASE("a push that is admitted but fails its checks changes nothing") {
  Ledger ledger;
  ledger.Record(kC, UpdateIndex(0), A(1));
  const Ledger before = ledger;
  CHECK(ledger.Check(kC, UpdateIndex(1), A(2)) == Admission::kAdmit);
  CHECK(ledger.Check(ClosureId(8), UpdateIndex(1), A(2)) == Admission::kAdmit);
  CHECK(ledger == before);
}

TEST_CASE("updates that arrive out of order are distinguished, up to the last one of a closure") {
  Ledger ledger;
  for (const std::uint32_t u : {kUpdatesPerClosureMax - 1, 0u, 64u, 63u}) {
    CHECK(ledger.Check(kC, UpdateIndex(u), A(1)) == Admission::kAdmit);
    ledger.Record(kC, UpdateIndex(u), A(1));
    CHECK(ledger.Check(kC, UpdateIndex(u), A(1)) == Admission::kDuplicate);
  }
  for (const std::uint32_t u : {1u, 62u, 65u, kUpdatesPerClosureMax - 2})
    CHECK(ledger.Check(kC, UpdateIndex(u), A(1)) == Admission::kAdmit);
}

TEST_CASE(
    "Close frees closures that have ended, keeps the others, and reports whether anything "
    "changed") {
  Ledger ledger;
  for (std::uint64_t c = 0; c < 5; ++c) ledger.Record(ClosureId(c), UpdateIndex(0), A(1));
  CHECK(ledger.Close(IntervalSet::Range(0, 2), {4}));
  CHECK(ledger.open().size() == 2);
  CHECK_FALSE(ledger.Close(IntervalSet::Range(0, 2), {4}));
  CHECK(ledger.Check(ClosureId(1), UpdateIndex(3), A(9)) == Admission::kDuplicate);
  CHECK(ledger.Check(ClosureId(4), UpdateIndex(3), A(9)) == Admission::kRefused);
  CHECK(ledger.Has(ClosureId(0), UpdateIndex(3)));
  CHECK(ledger.Has(ClosureId(2), UpdateIndex(0)));
  CHECK_FALSE(ledger.Has(ClosureId(2), UpdateIndex(3)));
}

TEST_CASE("a million closures in order need the memory of one interval") {
  Ledger ledger;
  const std::uint64_t empty = ledger.MemoryBytes();
  for (std::uint64_t c = 0; c < 1'000'000; c += 1000)
    ledger.Close(IntervalSet::Range(c, c + 1000), {});
  CHECK(ledger.MemoryBytes() <= empty + 64);
}

// Compares the ledger with a simple second implementation, which keeps every recorded (closure,
// update) in a set.
TEST_CASE("random pushes and Closes give the results of a plain set") {
  std::mt19937_64 random(20261121);
  for (int round = 0; round < 50; ++round) {
    Ledger ledger;
    std::set<std::pair<std::uint64_t, std::uint32_t>> recorded;
    std::map<std::uint64_t, std::uint64_t> seen;
    std::set<std::uint64_t> done, refused;
    for (int i = 0; i < 400; ++i) {
      const std::uint64_t c = random() % 12, attempt = random() % 6;
      const auto u = static_cast<std::uint32_t>(random() % 130);
      if (random() % 40 == 0) {
        const bool cancel = random() % 3 == 0;
        if (cancel)
          refused.insert(c);
        else
          done.insert(c);
        ledger.Close(cancel ? IntervalSet{} : IntervalSet{c},
                     cancel ? IntervalSet{c} : IntervalSet{});
        continue;
      }
      Admission want = Admission::kAdmit;
      if (done.contains(c))
        want = Admission::kDuplicate;
      else if (refused.contains(c))
        want = Admission::kRefused;
      else if (seen.contains(c) && seen[c] > attempt)
        want = Admission::kSuperseded;
      else if (recorded.contains({c, u}))
        want = Admission::kDuplicate;
      REQUIRE(ledger.Check(ClosureId(c), UpdateIndex(u), A(attempt)) == want);
      if (done.contains(c) || refused.contains(c) || want == Admission::kSuperseded) continue;
      seen[c] = std::max(seen[c], attempt);
      if (want == Admission::kAdmit) {
        ledger.Record(ClosureId(c), UpdateIndex(u), A(attempt));
        recorded.insert({c, u});
      }
    }
  }
}

}  // namespace
}  // namespace evergrad::ps_server

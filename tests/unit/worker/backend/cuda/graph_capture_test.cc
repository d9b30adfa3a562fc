#include "worker/backend/cuda/graph_capture.h"

#include <catch2/catch.hpp>
#include <set>

#include "common/random/philox.h"
#include "worker/backend/cuda/algorithm_choice.h"

namespace evergrad::worker {
namespace {

using Action = GraphCapture::Action;

TEST_CASE("a shape is run, captured once, and replayed; changed addresses are captured again and counted") {
  GraphCapture capture({2, 3, 16, true});
  CHECK(capture.Next(1, 100).action == Action::kEager);
  CHECK(capture.Next(1, 101).action == Action::kEager);
  CHECK(capture.Next(1, 102).action == Action::kCapture);
  capture.Captured(1);
  for (int i = 0; i < 5; ++i) CHECK(capture.Next(1, 102).action == Action::kReplay);
  const auto again = capture.Next(1, 103);
  CHECK(again.action == Action::kCapture);
  CHECK(again.drop);
  capture.Captured(1);
  CHECK(capture.Next(1, 103).action == Action::kReplay);
  CHECK(capture.stats().captures == 2);
  CHECK(capture.stats().replays == 6);
  CHECK(capture.stats().recaptures == std::map<std::string, std::uint64_t>{{"addresses changed", 1}});
  CHECK(capture.Next(2, 100).action == Action::kEager);  // another shape warms up by itself
}

TEST_CASE("a capture that fails is tried again, then given up with its reason; one that is never replayed likewise") {
  GraphCapture capture({0, 2, 16, true});
  CHECK(capture.Next(1, 1).action == Action::kCapture);
  capture.Failed(1, "cudaMalloc while capturing");
  CHECK(capture.given_up(1).empty());
  CHECK(capture.Next(1, 1).action == Action::kCapture);
  capture.Failed(1, "cudaMalloc while capturing");
  for (int i = 0; i < 3; ++i) CHECK(capture.Next(1, 1).action == Action::kEager);
  CHECK(capture.given_up(1) == "cudaMalloc while capturing");
  CHECK(capture.stats().failures == 2);
  CHECK(capture.stats().recaptures_total() == 1);
  // Addresses that change at each step.
  for (std::uint64_t i = 0; i < 2; ++i) {
    CHECK(capture.Next(2, i).action == Action::kCapture);
    capture.Captured(2);
  }
  const auto dropped = capture.Next(2, 9);
  CHECK(dropped.action == Action::kEager);
  CHECK(dropped.drop);
  CHECK(capture.given_up(2) == "addresses change from step to step");
}

TEST_CASE("failures in a row are counted from the last replay on") {
  GraphCapture capture({0, 2, 16, true});
  CHECK(capture.Next(1, 1).action == Action::kCapture);
  capture.Failed(1, "once");
  CHECK(capture.Next(1, 1).action == Action::kCapture);
  capture.Captured(1);
  CHECK(capture.Next(1, 1).action == Action::kReplay);
  CHECK(capture.Next(1, 2).action == Action::kCapture);
  capture.Failed(1, "once more, not twice in a row");
  CHECK(capture.given_up(1).empty());
  CHECK(capture.Next(1, 2).action == Action::kCapture);
}

TEST_CASE("the graph that was used longest ago goes, and its return is counted as evicted") {
  GraphCapture capture({0, 3, 2, true});
  for (const std::uint64_t key : {1, 2}) {
    CHECK(capture.Next(key, 0).action == Action::kCapture);
    capture.Captured(key);
  }
  CHECK(capture.Next(1, 0).action == Action::kReplay);
  const auto third = capture.Next(3, 0);
  CHECK(third.evicted == 2u);
  capture.Captured(3);
  const auto second = capture.Next(2, 0);
  CHECK(second.action == Action::kCapture);
  CHECK(second.evicted == 1u);
  capture.Captured(2);
  CHECK(capture.stats().recaptures == std::map<std::string, std::uint64_t>{{"evicted", 1}});
  CHECK(capture.stats().evictions == 2);
}

TEST_CASE("switched off, every step is run eagerly") {
  GraphCapture capture({0, 3, 2, false});
  for (int i = 0; i < 4; ++i) CHECK(capture.Next(1, 0).action == Action::kEager);
  CHECK(capture.stats().eager == 4);
}

TEST_CASE("capture: what is replayed was captured with the same addresses and not dropped since, whatever happens") {
  const std::uint64_t seed = random::EntropyFromOs();
  INFO("seed " << seed);
  std::uint64_t at = 0;
  const auto draw = [&](std::uint64_t n) { return random::Bits64(seed, at++) % n; };
  GraphCapture capture({2, 3, 4, true});
  std::map<std::uint64_t, std::uint64_t> graphs;  // key -> addresses
  std::uint64_t captures = 0, replays = 0, eager = 0, failures = 0;
  for (int step = 0; step < 20000; ++step) {
    const std::uint64_t key = draw(8), addresses = draw(20) == 0 ? draw(3) : 7;
    const auto decision = capture.Next(key, addresses);
    if (decision.evicted) REQUIRE(graphs.erase(*decision.evicted) == 1);
    if (decision.drop) REQUIRE(graphs.erase(key) == 1);
    if (decision.action == Action::kReplay) {
      ++replays;
      REQUIRE(graphs.count(key) == 1);
      REQUIRE(graphs[key] == addresses);
    } else if (decision.action == Action::kCapture) {
      REQUIRE(graphs.count(key) == 0);
      if (draw(10) == 0) {
        capture.Failed(key, "drawn");
        ++failures;
      } else {
        capture.Captured(key);
        graphs[key] = addresses;
        ++captures;
      }
    } else {
      ++eager;
    }
    REQUIRE(graphs.size() <= 4);
  }
  const GraphCapture::Stats& stats = capture.stats();
  CHECK(stats.captures == captures);
  CHECK(stats.replays == replays);
  CHECK(stats.eager == eager);
  CHECK(stats.failures == failures);
  CHECK(stats.captures + stats.failures <= 8 + stats.recaptures_total());  // each beyond a shape's first has a reason
}

TEST_CASE("the fastest algorithm whose workspace fits wins, and what fails is passed over") {
  const std::vector<AlgorithmCandidate> candidates = {{100, true}, {10, false}, {10, true}, {5000, true}, {0, false}};
  const std::vector<double> seconds = {3, 1, 2, 0.1, -1};
  std::multiset<std::size_t> asked;
  const auto measure = [&](std::size_t i) -> absl::StatusOr<double> {
    asked.insert(i);
    if (seconds[i] < 0) return absl::InternalError("does not run");
    return seconds[i];
  };
  const auto best = ChooseAlgorithm(candidates, 1000, false, measure);
  CHECK(best->index == 1);
  CHECK(best->measured == 3);
  CHECK(asked == std::multiset<std::size_t>{0, 1, 2, 4});
  // Deterministic: the first that runs, whatever its time.
  asked.clear();
  CHECK(ChooseAlgorithm(candidates, 1000, true, measure)->index == 0);
  CHECK(asked == std::multiset<std::size_t>{0});
  CHECK(ChooseAlgorithm(candidates, 50, true, measure)->index == 2);
  CHECK(ChooseAlgorithm({}, 1000, false, measure).status().message() == "no algorithm: candidates=0 last=the library offers none");
  CHECK(ChooseAlgorithm({{5000, true}}, 1000, false, measure).status().message() ==
        "no algorithm: candidates=1 last=workspace too large: want=5000 max=1000");
  CHECK(ChooseAlgorithm({{0, false}}, 1000, true, measure).status().message() == "no algorithm: candidates=1 last=not deterministic");
  CHECK(ChooseAlgorithm({candidates[4], candidates[4]}, 1000, false, [](std::size_t) { return absl::InternalError("no"); }).status().message() ==
        "no algorithm: candidates=2 last=no");
}

}  // namespace
}  // namespace evergrad::worker

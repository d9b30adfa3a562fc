#include "worker/backend/cuda/graph_capture.h"

#include <catch2/catch.hpp>
#include <set>

#include "common/random/philox.h"
#include "worker/backend/cuda/algorithm_choice.h"

namespace evergrad::worker {
namespace {

using Action = GraphCapture::Action;

TEST_CASE(
    "a shape is run, captured once and replayed, and changed addresses cause another capture that "
    "is counted") {
  GraphCapture capture({2, 3, 16, true});
  CHECK(capture.Next(1, 100).action == Action::kEager);
  CHECK(capture.Next(1, 101).action == Action::kEager);
  CHECK(capture.Next(1, 102).action == Action::kCapture);
  capture.Captured(1, 10);
  for (int i = 0; i < 5; ++i) CHECK(capture.Next(1, 102).action == Action::kReplay);
  const auto again = capture.Next(1, 103);
  CHECK(again.action == Action::kCapture);
  CHECK(again.drop);
  capture.Captured(1, 10);
  CHECK(capture.Next(1, 103).action == Action::kReplay);
  CHECK(capture.stats().captures == 2);
  CHECK(capture.stats().replays == 6);
  CHECK(capture.stats().recaptures ==
        std::map<std::string, std::uint64_t>{{"addresses changed", 1}});
  CHECK(capture.Next(2, 100).action == Action::kEager);  // another shape needs its own warm-up
}

TEST_CASE(
    "a failing capture is retried, then abandoned with its reason, and so is one that is never "
    "replayed") {
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
  // In these steps the addresses change each time.
  for (std::uint64_t i = 0; i < 2; ++i) {
    CHECK(capture.Next(2, i).action == Action::kCapture);
    capture.Captured(2, 10);
  }
  const auto dropped = capture.Next(2, 9);
  CHECK(dropped.action == Action::kEager);
  CHECK(dropped.drop);
  CHECK(capture.given_up(2) == "addresses change from step to step");
}

TEST_CASE(
    "a forgotten shape frees its place, and the next shape of its key begins anew without counting "
    "as a repeat") {
  GraphCapture capture({1, 3, 1, true});
  CHECK(capture.Next(1, 1).action == Action::kEager);
  CHECK(capture.Next(1, 1).action == Action::kCapture);
  capture.Captured(1, 10);
  CHECK(capture.Next(2, 1).action == Action::kEager);
  CHECK(capture.Next(2, 1).action == Action::kEager);  // the limit allows no further graph
  capture.Forget(1);
  capture.Forget(3);  // this shape was never seen
  CHECK(capture.stats().graphs == 0);
  CHECK(capture.stats().calls == 0);
  CHECK(capture.Next(2, 1).action == Action::kCapture);
  capture.Captured(2, 10);
  capture.Forget(2);
  CHECK(capture.Next(1, 2).action == Action::kEager);
  CHECK(capture.Next(1, 2).action == Action::kCapture);
  capture.Captured(1, 10);
  CHECK(capture.stats().recaptures_total() == 0);
  CHECK(capture.stats().evictions == 0);
}

TEST_CASE("consecutive failures are counted from the last replay") {
  GraphCapture capture({0, 2, 16, true});
  CHECK(capture.Next(1, 1).action == Action::kCapture);
  capture.Failed(1, "once");
  CHECK(capture.Next(1, 1).action == Action::kCapture);
  capture.Captured(1, 10);
  CHECK(capture.Next(1, 1).action == Action::kReplay);
  CHECK(capture.Next(1, 2).action == Action::kCapture);
  capture.Failed(1, "once more, not twice in a row");
  CHECK(capture.given_up(1).empty());
  CHECK(capture.Next(1, 2).action == Action::kCapture);
}

// Records which shapes have a graph, on a machine with memory for the graphs that the options
// allow. Each graph has `calls` calls.
struct Turn {
  GraphCapture capture;
  std::set<std::uint64_t> graphs;
  explicit Turn(GraphCapture::Options options) : capture(options) {}
  Action Run(std::uint64_t key, std::uint64_t calls = 10) {
    const GraphCapture::Decision decision = capture.Next(key, 0);
    for (const GraphCapture::Key gone : decision.evicted) REQUIRE(graphs.erase(gone) == 1);
    if (decision.action == Action::kCapture) {
      capture.Captured(key, calls);
      REQUIRE(graphs.insert(key).second);
    }
    CHECK(capture.stats().graphs == graphs.size());
    return decision.action;
  }
};

TEST_CASE(
    "a graph that is unused for much longer than a new shape is evicted, and its return is "
    "counted") {
  Turn turn({1, 3, 2, true});
  for (int i = 0; i < 3; ++i)
    for (const std::uint64_t key : {1, 2}) turn.Run(key);
  CHECK(turn.graphs == std::set<std::uint64_t>{1, 2});
  CHECK(turn.Run(3) == Action::kEager);
  CHECK(turn.Run(3) == Action::kEager);  // the graphs of the other shapes were used as recently
  CHECK(turn.capture.stats().crowded == 1);
  for (int i = 0; i < 8; ++i) turn.Run(3), turn.Run(2);
  CHECK(turn.graphs == std::set<std::uint64_t>{2, 3});
  for (int i = 0; i < 8; ++i) turn.Run(1), turn.Run(2);
  CHECK(turn.graphs == std::set<std::uint64_t>{1, 2});
  CHECK(turn.capture.stats().recaptures == std::map<std::string, std::uint64_t>{{"evicted", 1}});
  CHECK(turn.capture.stats().evictions == 2);
}

TEST_CASE(
    "with more shapes than places as many shapes as places are replayed, and none is captured "
    "repeatedly") {
  for (const std::uint64_t shapes : {16, 17, 40, 3000}) {
    Turn turn({2, 3, 16, true});
    for (std::uint64_t round = 0; round < 12; ++round)
      for (std::uint64_t key = 0; key < shapes; ++key) turn.Run(key);
    const GraphCapture::Stats& stats = turn.capture.stats();
    INFO("shapes " << shapes << " captures " << stats.captures << " replays " << stats.replays);
    if (shapes > 1024) {  // there are more shapes than are remembered
      CHECK(stats.captures == 0);
      continue;
    }
    CHECK(stats.captures == 16);
    CHECK(stats.replays == 16 * 9);
    CHECK(stats.evictions == 0);
    CHECK(stats.crowded == (shapes - 16) * 10);
  }
  // Different shapes, such as those of the next job, must soon take the places of the old ones.
  Turn turn({2, 3, 16, true});
  for (std::uint64_t round = 0; round < 20; ++round)
    for (std::uint64_t key = 0; key < 16; ++key) turn.Run(key);
  for (std::uint64_t round = 0; round < 12; ++round)
    for (std::uint64_t key = 100; key < 116; ++key) turn.Run(key);
  CHECK(turn.graphs.size() == 16);
  CHECK(*turn.graphs.begin() == 100);
}

TEST_CASE(
    "graphs are bounded by their calls too, and a large one takes the places of several small "
    "ones") {
  Turn turn({0, 3, 16, true, 100});
  for (std::uint64_t key = 0; key < 10; ++key) CHECK(turn.Run(key, 10) == Action::kCapture);
  CHECK(turn.capture.stats().calls == 100);
  for (std::uint64_t key = 0; key < 10; ++key) CHECK(turn.Run(key) == Action::kReplay);
  CHECK(turn.Run(50, 45) == Action::kEager);
  for (int i = 0; i < 100; ++i) turn.Run(50, 45);
  CHECK(turn.graphs.count(50) == 1);
  CHECK(turn.capture.stats().calls < 100 + 45);
  for (int i = 0; i < 100; ++i) turn.Run(51, 200);
  CHECK(turn.graphs.count(51) == 1);
  CHECK(turn.capture.stats().calls < 100 + 200);
  for (int i = 0; i < 1000; ++i) turn.Run(52, 10);
  CHECK((turn.graphs.count(52) == 1 && turn.graphs.count(51) == 0));
  CHECK(turn.capture.stats().calls <= 100);
  // This graph alone is larger than the limit. It is kept, and no other graph beside it.
  for (int i = 0; i < 10000; ++i) turn.Run(51, 200);
  CHECK(turn.graphs == std::set<std::uint64_t>{51});
}

TEST_CASE("with captures off every step runs eagerly") {
  GraphCapture capture({0, 3, 2, false});
  for (int i = 0; i < 4; ++i) CHECK(capture.Next(1, 0).action == Action::kEager);
  CHECK(capture.stats().eager == 4);
}

TEST_CASE(
    "capture: a replayed step was captured with the same addresses and not dropped since, after "
    "random events") {
  const std::uint64_t seed = random::EntropyFromOs();
  INFO("seed " << seed);
  std::uint64_t at = 0;
  const auto draw = [&](std::uint64_t n) { return random::Bits64(seed, at++) % n; };
  GraphCapture capture({2, 3, 4, true, 60});
  std::map<std::uint64_t, std::uint64_t> graphs;  // key -> addresses of the captured graph
  std::uint64_t captures = 0, replays = 0, eager = 0, failures = 0;
  for (int step = 0; step < 20000; ++step) {
    const std::uint64_t key = draw(8), addresses = draw(20) == 0 ? draw(3) : 7;
    const auto decision = capture.Next(key, addresses);
    for (const GraphCapture::Key gone : decision.evicted) REQUIRE(graphs.erase(gone) == 1);
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
        capture.Captured(key, 1 + draw(20));
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
  // Each capture must have a reason, except the first of a shape.
  CHECK(stats.captures + stats.failures <= 8 + stats.recaptures_total());
}

TEST_CASE("the fastest algorithm whose workspace fits is selected, and failing ones are skipped") {
  const std::vector<AlgorithmCandidate> candidates = {
      {100, true}, {10, false}, {10, true}, {5000, true}, {0, false}};
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
  // In deterministic mode, the first plan that can run is chosen, however long it takes.
  asked.clear();
  CHECK(ChooseAlgorithm(candidates, 1000, true, measure)->index == 0);
  CHECK(asked == std::multiset<std::size_t>{0});
  CHECK(ChooseAlgorithm(candidates, 50, true, measure)->index == 2);
  CHECK(ChooseAlgorithm({}, 1000, false, measure).status().message() ==
        "no algorithm: candidates=0 last=the library offers no algorithm");
  CHECK(ChooseAlgorithm({{5000, true}}, 1000, false, measure).status().message() ==
        "no algorithm: candidates=1 last=workspace too large: want=5000 max=1000");
  CHECK(ChooseAlgorithm({{0, false}}, 1000, true, measure).status().message() ==
        "no algorithm: candidates=1 last=not deterministic");
  CHECK(ChooseAlgorithm({candidates[4], candidates[4]}, 1000, false,
                        [](std::size_t) { return absl::InternalError("no"); })
            .status()
            .message() == "no algorithm: candidates=2 last=no");
}

}  // namespace
}  // namespace evergrad::worker

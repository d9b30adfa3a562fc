// Tests the histograms of a worker: the durations of pushes, pulls and steps, and of the time for
// which steps wait for a batch.
#include "worker/runner/runner_metrics.h"

#include <catch2/catch.hpp>

#include "runner_fixture.h"

namespace evergrad::worker {
namespace {

constexpr std::chrono::milliseconds kDelay{60};
// The bound is a little shorter than the delay, because a timer may fire a little early by another
// clock.
constexpr double kDelaySeconds = 0.055;

void Delay() { runtime::WaitableEvent().WaitFor(kDelay); }

// Returns the value of a line in the text of the metrics, such as
// "evergrad_worker_push_seconds_count".
double ValueOf(const metrics::Registry& registry, const std::string& line) {
  const std::string text = registry.PrometheusText();
  const std::size_t at = text.find(absl::StrCat("\n", line, " "));
  REQUIRE(at != std::string::npos);
  return std::stod(text.substr(at + line.size() + 2));
}
double CountOf(const Stage& stage, const std::string& what) {
  return ValueOf(stage.registry, absl::StrCat("evergrad_worker_", what, "_seconds_count"));
}
double SumOf(const Stage& stage, const std::string& what) {
  return ValueOf(stage.registry, absl::StrCat("evergrad_worker_", what, "_seconds_sum"));
}

// There are 90 training examples in batches of 10, so an epoch has closures of 4, 4 and 1 steps.
// There are two epochs.
void Begin(Stage& stage, int pipeline = 0) {
  WriteIdx(stage.folder, "train", 90);
  WriteIdx(stage.folder, "eval", 50);
  stage.Begin(TrainingYaml(stage.folder, 0.5, pipeline), 2, SmallPlan());
}

TEST_CASE("each step is one push, one pull, one step and one wait for a batch") {
  const int pipeline = GENERATE(0, 1);
  CAPTURE(pipeline);
  Stage stage;
  Begin(stage, pipeline);
  for (const char* what : {"push", "pull", "step", "batch_wait"}) CHECK(CountOf(stage, what) == 0);
  double steps = 0;
  for (std::uint64_t c = 0; c < stage.plan->closures(); ++c) {
    steps += static_cast<double>(stage.RunClosure(c).metrics().steps());
    for (const char* what : {"push", "pull", "step", "batch_wait"}) {
      CAPTURE(c, what);
      CHECK(CountOf(stage, what) == steps);
    }
  }
  CHECK(steps == 18);
}

TEST_CASE("an evaluation is in no histogram") {
  Stage stage;
  Begin(stage);
  stage.RunClosure(0, v1::EVALUATE);
  for (const char* what : {"push", "pull", "step", "batch_wait"}) CHECK(CountOf(stage, what) == 0);
}

TEST_CASE("a computation that takes long is in the duration of its step") {
  Stage stage({.failpoints = "worker.step=1*delay(60)"});
  Begin(stage);
  stage.RunClosure(0);
  CHECK(SumOf(stage, "step") >= kDelaySeconds);
}

TEST_CASE("the time between a step and its push is in neither duration") {
  Stage stage({.failpoints = "worker.before_push=1*delay(60)"});
  Begin(stage);
  const MonoTime began = stage.clock.Now();
  stage.RunClosure(0);
  const double took = std::chrono::duration<double>(stage.clock.Now() - began).count();
  CHECK(SumOf(stage, "step") + SumOf(stage, "push") <= took - kDelaySeconds);
}

TEST_CASE("a server that answers a push late is in the duration of the push") {
  Stage stage;
  Begin(stage);
  bool delayed = false;
  stage.nodes[0]->SetIntercept(
      [&](const v1::RequestHeader& header, std::unique_ptr<transport::DataResponder>&) {
        if (header.pushes_size() > 0 && !std::exchange(delayed, true)) Delay();
        return false;
      });
  stage.RunClosure(0);
  CHECK(delayed);
  CHECK(SumOf(stage, "push") >= kDelaySeconds);
}

TEST_CASE("a push that is refused and sent again is one push, and lasts until it is applied") {
  Stage stage;
  Begin(stage);
  int refused = 0;
  stage.nodes[1]->SetIntercept(
      [&](const v1::RequestHeader& header, std::unique_ptr<transport::DataResponder>& responder) {
        if (header.pushes_size() == 0 || refused >= 2) return false;
        ++refused;
        Delay();
        responder->Fail(absl::UnavailableError("lost on the way"));
        return true;
      });
  stage.RunClosure(0);
  CHECK(refused == 2);
  CHECK(CountOf(stage, "push") == 4);
  CHECK(SumOf(stage, "push") >= 2 * kDelaySeconds);
}

TEST_CASE("a server that answers a pull late is in the duration of the pull") {
  Stage stage;
  Begin(stage);
  bool delayed = false;
  stage.nodes[0]->SetIntercept(
      [&](const v1::RequestHeader& header, std::unique_ptr<transport::DataResponder>&) {
        if (header.pulls_size() > 0 && header.pushes_size() == 0 && !std::exchange(delayed, true))
          Delay();
        return false;
      });
  stage.RunClosure(0);
  CHECK(delayed);
  CHECK(SumOf(stage, "pull") >= kDelaySeconds);
}

TEST_CASE("the bounds of the histograms separate the steps of small and of large models") {
  metrics::Registry registry;
  const RunnerMetrics metrics(&registry, 1, 1);
  for (const metrics::Histogram* histogram : {&metrics.push_seconds, &metrics.pull_seconds,
                                              &metrics.step_seconds, &metrics.batch_wait_seconds}) {
    const std::vector<double> bounds = histogram->Read().upper_bounds;
    REQUIRE(bounds.size() > 2);
    CHECK(bounds.front() <= 0.0001);  // short enough for a step of a linear model
    CHECK(bounds.back() >= 60);       // long enough for a wait that is a fault
    // A quantile is known up to the factor between two neighbouring bounds.
    for (std::size_t i = 1; i < bounds.size(); ++i) CHECK(bounds[i] / bounds[i - 1] <= 2.51);
  }
}

}  // namespace
}  // namespace evergrad::worker

#include "common/health/liveness.h"

#include <catch2/catch.hpp>
#include <memory>

#include "tests/support/manual_executor.h"

namespace evergrad::health {
namespace {

using namespace std::chrono_literals;
using runtime::ManualExecutor;

// A process with three executors: two that do work, and one that measures the time. An executor
// runs only in Run.
struct Process {
  ManualClock clock;
  Liveness liveness{&clock};
  ManualExecutor time{&clock}, control{&clock};
  std::unique_ptr<ManualExecutor> shards = std::make_unique<ManualExecutor>(&clock);

  Process() {
    liveness.MeasureTimeOn(&time);
    liveness.Watch("control", &control);
    liveness.Watch("shards-0", shards.get());
  }
  // Advances the clock by `seconds`. Meanwhile, only the executors in `running` run.
  void Run(int seconds, const std::vector<ManualExecutor*>& running) {
    for (int i = 0; i < seconds; ++i) {
      clock.Advance(1s);
      for (ManualExecutor* executor : running) executor->RunReady();
    }
  }
};

TEST_CASE("an executor that runs nothing for 30 s is stuck, until it runs again") {
  Process p;
  p.Run(100, {&p.time, &p.control, p.shards.get()});
  CHECK(p.liveness.Stuck().empty());
  p.Run(29, {&p.time, &p.control});
  CHECK(p.liveness.Stuck().empty());
  p.Run(1, {&p.time, &p.control});
  CHECK(p.liveness.Stuck() ==
        std::vector<Unmet>{{"shards-0", "this thread has run no task for 30 s"}});
  p.Run(15, {&p.time, &p.control});
  CHECK(p.liveness.Stuck() ==
        std::vector<Unmet>{{"shards-0", "this thread has run no task for 45 s"}});
  p.Run(1, {&p.time, &p.control, p.shards.get()});
  CHECK(p.liveness.Stuck().empty());
}

TEST_CASE("an executor that never ran its first task is stuck, too") {
  Process p;
  p.Run(30, {&p.time, p.shards.get()});
  CHECK(p.liveness.Stuck() ==
        std::vector<Unmet>{{"control", "this thread has run no task for 30 s"}});
}

TEST_CASE("all watched executors together may be stuck, and the names keep their order") {
  Process p;
  p.Run(30, {&p.time});
  const std::vector<Unmet> stuck = p.liveness.Stuck();
  REQUIRE(stuck.size() == 2);
  CHECK(stuck[0].name == "control");
  CHECK(stuck[1].name == "shards-0");
}

TEST_CASE("a process that stood still for an hour is live when it continues") {
  Process p;
  p.Run(10, {&p.time, &p.control, p.shards.get()});
  p.clock.Advance(1h);
  CHECK(p.liveness.Stuck().empty());
  // Probes are answered before any thread has run again. This does not count as stuck.
  p.Run(5, {});
  CHECK(p.liveness.Stuck().empty());
  // An executor that never runs again counts as stuck at most 30 s later.
  p.Run(30, {&p.time, &p.control});
  CHECK(p.liveness.Stuck().size() == 1);
}

TEST_CASE("probes measure the time if no executor does") {
  Process p;
  p.Run(5, {&p.time, &p.control, p.shards.get()});
  for (int i = 0; i < 2; ++i) {
    p.clock.Advance(10s);
    CHECK(p.liveness.Stuck().empty());
  }
  p.clock.Advance(10s);
  CHECK(p.liveness.Stuck().size() == 2);
}

TEST_CASE("an executor that has ended is not watched any more") {
  Process p;
  p.Run(5, {&p.time, &p.control, p.shards.get()});
  p.shards.reset();
  p.Run(100, {&p.time, &p.control});
  CHECK(p.liveness.Stuck().empty());

  // An executor that has been shut down refuses tasks, and does not count as stuck.
  runtime::ThreadExecutor over({.name = "over"});
  over.Shutdown();
  p.liveness.Watch("over", &over);
  p.Run(100, {&p.time, &p.control});
  CHECK(p.liveness.Stuck().empty());
}

TEST_CASE("real executors are live, and may outlive the object or not") {
  RealClock clock;
  auto liveness = std::make_unique<Liveness>(
      &clock, LivenessOptions{.period = 1ms, .stuck_after = std::chrono::hours(1)});
  runtime::ThreadExecutor outlives({.name = "outlives"});
  {
    runtime::ThreadExecutor ends({.name = "ends"});
    liveness->Watch("ends", &ends);
    liveness->Watch("outlives", &outlives);
    liveness->MeasureTimeOn(&ends);
    runtime::WaitableEvent later;
    ends.PostAfter(20ms, [&] { later.Set(); });
    later.Wait();
    CHECK(liveness->Stuck().empty());
  }
  CHECK(liveness->Stuck().empty());
  liveness.reset();
}

}  // namespace
}  // namespace evergrad::health

// Tests how a deterministic job chooses its only worker, without a Job object.
#include "coordinator/jobs/worker_pin.h"

#include <catch2/catch.hpp>
#include <vector>

#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;

struct Fixture {
  JobWorkers workers;
  UnfitWorkers unfit{std::chrono::seconds(60)};
  std::vector<std::string> events;
  WorkerPin pin;

  JobWorker& Add(std::uint64_t task, const std::string& identity, const std::string& compute) {
    JobWorker& worker = workers[TaskId(task)];
    worker.task = TaskId(task);
    worker.identity = identity;
    worker.compute = compute;
    worker.ready = true;
    worker.process = task;
    return worker;
  }
  std::string Choose() {
    const JobWorker* chosen = pin.Choose(
        workers, unfit,
        [](const JobWorker& worker) { return worker.ready && !worker.leaving && !worker.stuck; },
        [this](absl::string_view kind, const std::string& text) {
          events.push_back(std::string(kind) + ": " + text);
        });
    return chosen == nullptr ? "" : chosen->identity;
  }
};

TEST_CASE("the oldest registration is chosen, and keeps the work while it holds some") {
  Fixture f;
  f.Add(2, "b", "x");
  f.Add(1, "a", "x");
  CHECK(f.Choose() == "a");
  JobWorker& a = f.workers.at(TaskId(1));
  a.leaving = true;
  a.Take(Attempt{1, 1}, {ClosureId(1)});
  CHECK(f.Choose() == "a");
  CHECK(f.events.empty());
}

TEST_CASE("a worker of the same build and settings takes over, with an event") {
  Fixture f;
  f.Add(1, "a", "x");
  f.Choose();
  f.Add(2, "b", "y");
  f.Add(3, "c", "x");
  f.workers.erase(TaskId(1));
  CHECK(f.Choose() == "c");
  REQUIRE(f.events.size() == 1);
  CHECK_THAT(f.events[0], Contains("worker/c takes over from worker/a"));
}

TEST_CASE("other workers are not chosen, and the job waits and reports the reason once") {
  Fixture f;
  JobWorker& a = f.Add(1, "a", "x");
  f.Choose();
  f.Add(2, "b", "y");
  a.stuck = true;
  CHECK(f.Choose().empty());
  CHECK(f.Choose().empty());
  CHECK(f.pin.waits());
  REQUIRE(f.events.size() == 1);
  CHECK_THAT(f.events[0], Contains("worker/a cannot work now (it makes no progress)") &&
                              Contains("waits for such a worker: x"));
  a.stuck = false;
  CHECK(f.Choose() == "a");
  CHECK_FALSE(f.pin.waits());
}

TEST_CASE("each reason why the worker cannot work has its message") {
  const auto reason = [](auto change) {
    Fixture f;
    f.Choose();
    f.Add(1, "a", "x");
    f.Choose();
    change(f);
    f.Choose();
    return f.events.back();
  };
  CHECK_THAT(reason([](Fixture& f) { f.workers.clear(); }),
             Contains("it has disconnected, or came back"));
  CHECK_THAT(reason([](Fixture& f) { f.workers.at(TaskId(1)).leaving = true; }),
             Contains("it is leaving"));
  CHECK_THAT(reason([](Fixture& f) { f.workers.at(TaskId(1)).ready = false; }),
             Contains("it is disconnected"));
  CHECK_THAT(reason([](Fixture& f) {
               f.workers.at(TaskId(1)).ready = false;
               f.unfit.Add(1, v1::ABILITY, "no GPU", MonoTime{0});
             }),
             Contains("it cannot take part"));
}

TEST_CASE("a worker without finished work can be released, and a restart keeps the choice") {
  Fixture f;
  f.Add(1, "a", "x");
  f.Choose();
  v1::JobSnapshot snapshot;
  f.pin.Fill(&snapshot);
  Fixture next;
  next.pin.Read(snapshot);
  next.Add(1, "b", "y");
  CHECK(next.Choose().empty());
  next.pin.Release("b");
  CHECK(next.Choose().empty());
  next.pin.Release("a");
  CHECK(next.Choose() == "b");
}

}  // namespace
}  // namespace evergrad::coordinator

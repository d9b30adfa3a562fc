// Tests how a job takes closures away from a worker, without a Job object.
#include "coordinator/jobs/work_revoker.h"

#include <catch2/catch.hpp>

#include "work_fixture.h"

namespace evergrad::coordinator {
namespace {

using std::chrono::seconds;

struct Fixture : WorkFixture {
  Fixture() { options.step_timeout = seconds(10); }
  // The worker reports that it computes step 3 of this attempt.
  void Run(std::uint64_t task, const v1::Grant& grant) {
    v1::WorkerProgress& progress = worker(task).progress;
    progress.set_state("running");
    progress.set_computing(true);
    *progress.mutable_running_attempt() = grant.attempt();
    progress.set_running_closure(grant.closure());
    progress.set_running_step(3);
  }
  // Grants an evaluation closure to worker 7.
  v1::Grant Evaluate() {
    worker(8).ready = false;
    reading.Begin(v1::EVALUATE, 1, MonoTime{0});
    reading.Grant();
    worker(8).ready = true;
    return Grants(7).at(0);
  }
  // Lets 20 s pass, so that work without progress counts as stalled, and runs the check.
  void Stall(bool window_open = false) {
    host.clock.Advance(seconds(20));
    revoker.Check(window_open);
  }
  std::size_t Superseded(std::uint64_t task) {
    std::size_t messages = 0;
    for (const v1::CoordinatorMessage& message : Take(TaskId(task)))
      messages += message.has_done_answer() && message.done_answer().superseded();
    return messages;
  }

  WorkRevoker revoker{
      Part(), {.roster = &roster, .reading = &reading, .deaths = &deaths, .source = &source}};
};

TEST_CASE("training that stalls is taken away, and others may be granted it") {
  Fixture f;
  const v1::Grant grant = f.Hold();
  f.Run(7, grant);
  const std::size_t held = f.worker(7).held.size();
  f.Stall();
  CHECK(f.Superseded(7) == held);
  CHECK(f.worker(7).held.empty());
  CHECK(f.IsFree(grant));
  CHECK_FALSE(f.roster.Usable(f.worker(7), f.host.Now()));
  CHECK(f.Said("stall: worker/7 has not advanced a step for 10 s: closure 0 step 3 is revoked"));
  CHECK(f.Said("not reproducible: closure 0 step 3 was revoked from worker/7"));
}

TEST_CASE("nothing is taken away while the window is open, or once the job ends") {
  Fixture f;
  f.Run(7, f.Hold());
  SECTION("the window") { f.Stall(/*window_open=*/true); }
  SECTION("the end") {
    f.ending = true;
    f.Stall();
  }
  CHECK(f.Superseded(7) == 0);
  CHECK_FALSE(f.worker(7).held.empty());
}

TEST_CASE("an evaluation that stalls again and again ends the job") {
  Fixture f;
  f.options.poison_deaths = 1;
  f.Run(7, f.Evaluate());
  f.Stall();
  CHECK(f.Superseded(7) == 1);
  CHECK(f.reading.Waiting(f.host.Now()) != nullptr);
  CHECK(f.Said("stall: worker/7 has not advanced a step for 10 s: EVALUATE closure 0 is revoked"));
  CHECK(f.Said("fail machine: work repeatedly made no progress"));
  CHECK_FALSE(f.Said("not reproducible"));
}

TEST_CASE("the work of a worker that cannot reach a server goes to one that can") {
  Fixture f;
  f.options.step_timeout = seconds(0);
  f.revoker.Check(/*window_open=*/false);  // from here on the revoker knows the servers
  const v1::Grant grant = f.Hold();
  f.Run(7, grant);
  v1::UnreachedServer* server = f.worker(7).progress.add_unreached();
  server->set_server("a");
  server->set_for_ms(60'000);
  SECTION("another worker is there") {
    f.Stall();
    CHECK(f.worker(7).held.empty());
    CHECK(f.IsFree(grant));
    CHECK(f.roster.IsAside(7));
    CHECK(f.Said("not reproducible: the work of worker/7 was given to other workers"));
    CHECK(f.said.back() == "pump");
  }
  SECTION("no other worker is there") {
    f.roster.workers().erase(TaskId(8));
    f.Stall();
    CHECK_FALSE(f.worker(7).held.empty());
  }
}

}  // namespace
}  // namespace evergrad::coordinator

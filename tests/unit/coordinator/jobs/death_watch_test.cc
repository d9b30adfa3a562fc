// Tests the consequences that deaths of tasks have for a job, without a Job object.
#include "coordinator/jobs/death_watch.h"

#include <catch2/catch.hpp>

#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

struct Fixture : PartFixture {
  Fixture() {
    Place();
    options.deaths_max = 2;
    worker.task = TaskId(7);
    worker.identity = "0";
    worker.ready = true;
  }
  // The worker now runs this step of this closure.
  void Run(std::uint64_t closure, std::uint32_t step) {
    worker.Take({1, closure + 1}, {ClosureId(closure), v1::TRAIN, host.Now()});
    worker.progress.set_state("running");
    worker.progress.set_running_closure(closure);
    *worker.progress.mutable_running_attempt() = client::ToProto(Attempt{1, closure + 1});
    worker.progress.set_running_step(step);
  }
  void Die(bool leaving = false) {
    watch.OnDeath(Role::kWorker, "0", "killed", leaving, &worker, "host");
  }
  void Judge() {
    host.clock.Advance(std::chrono::seconds(1));
    watch.Judge();
  }

  EventLog events{100};
  DeathWatch watch{Part(), &events, [](ClosureId) { return " epoch=1"; }};
  JobWorker worker;
};

TEST_CASE("three deaths at one step of one closure end the job, and the text names the closure") {
  Fixture f;
  f.options.deaths_max = 100;
  f.Run(3, 5);
  for (int i = 0; i < 3; ++i) {
    CHECK_FALSE(f.Said("poison closure"));
    f.Die();
    f.Judge();
  }
  CHECK(f.Said("death: worker/0: killed; it last reported closure 3 step 5"));
  CHECK(f.Said("worker/0 died in closure 3 at step 5"));
  CHECK(
      f.Said("fail machine: poison closure: the closure repeatedly killed its workers at the same "
             "step: closure=3 epoch=1 step=5 deaths=3"));
}

TEST_CASE("deaths of tasks with work end a job that makes no progress, and progress clears them") {
  Fixture f;
  const bool progress = GENERATE(false, true);
  for (int i = 0; i < 3; ++i) {
    f.watch.OnDeath(Role::kPsServer, "a", "gone", false, nullptr, "");
    f.Judge();
    if (progress && i == 1) f.watch.OnFirstSuccess();
  }
  v1::JobCounters counters;
  f.watch.FillCounters(&counters);
  CHECK(counters.other_deaths() == (progress ? 1 : 3));
  CHECK(f.Said("made no progress meanwhile (--deaths-max): deaths=3 max=2") == !progress);
}

TEST_CASE("a worker that leaves, or has said nothing, is no death") {
  Fixture f;
  f.Run(3, 5);
  f.Die(/*leaving=*/true);
  CHECK(f.said == std::vector<std::string>{"state: worker/0 left: killed"});
  f.worker.silent = true;
  f.Die();
  CHECK(f.said.size() == 1);
  CHECK(f.events.deaths_total() == 0);
}

TEST_CASE("a worker that dies again and again with work gets none for a while") {
  Fixture f;
  f.options.deaths_max = 100;
  f.worker.Take({1, 1}, {ClosureId(0), v1::TRAIN, f.host.Now()});
  for (int i = 0; i < 4; ++i) f.Die();
  CHECK(f.Said("warning: worker/0 has died 4 times in a row while it held work of this job"));
  CHECK(f.watch.backoff().Until(Role::kWorker, "0") > f.host.Now());
  v1::JobStatus status;
  f.watch.FillStatus({}, &status);
  REQUIRE(status.backing_off_size() == 1);
  CHECK(status.backing_off(0).task() == "worker/0");
  CHECK(status.backing_off(0).host() == "host");
  // If a worker that had no work dies, no event is added.
  f.worker.DropAll();
  f.worker.backoff_until = f.watch.backoff().Until(Role::kWorker, "0");
  const std::size_t said = f.said.size();
  f.Die();
  CHECK(f.said.size() == said);
  f.watch.OnWorkerProgress("0");
  CHECK(f.watch.backoff().size() == 0);
}

TEST_CASE("a closure that succeeds credits the servers that own shards") {
  Fixture f;
  for (int i = 0; i < 4; ++i) f.watch.OnDeath(Role::kPsServer, "a", "gone", false, nullptr, "");
  CHECK(f.watch.backoff().size() == 1);
  CHECK_FALSE(f.watch.DiesIdle("a"));  // server "a" owns a shard, so it does not count as idle
  f.watch.OnFirstSuccess();
  f.Judge();
  CHECK(f.watch.backoff().size() == 0);
}

TEST_CASE("workers that membership keeps from work are shown, too") {
  Fixture f;
  JobWorkers workers;
  f.worker.backoff_until = f.host.Now() + std::chrono::seconds(2);
  workers.emplace(f.worker.task, f.worker);
  v1::JobStatus status;
  f.watch.FillStatus(workers, &status);
  REQUIRE(status.backing_off_size() == 1);
  CHECK(status.backing_off(0).for_ms() == 2000);
}

}  // namespace
}  // namespace evergrad::coordinator

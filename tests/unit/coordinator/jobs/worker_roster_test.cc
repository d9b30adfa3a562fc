// Tests the list of a job's workers, without a Job object.
#include "coordinator/jobs/worker_roster.h"

#include <catch2/catch.hpp>

#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct Fixture : PartFixture {
  JobWorker& Add(std::uint64_t task, std::uint64_t process = 1) {
    v1::Hello hello;
    hello.set_process_uid(process);
    hello.set_build_id("build");
    JobWorker worker = roster.Make(TaskId(task), std::to_string(task), MonoTime{0}, hello);
    worker.ready = true;
    return roster.workers().insert_or_assign(TaskId(task), std::move(worker)).first->second;
  }
  void Hold(JobWorker& worker, std::uint64_t closure) {
    worker.Take({1, closure + 1}, {ClosureId(closure), v1::TRAIN, host.Now()});
  }
  v1::Failed Lacks(v1::Lack lack = v1::ABILITY) {
    v1::Failed failed;
    failed.set_kind(v1::TRAIN);
    failed.set_all_targets(true);
    failed.set_lack(lack);
    failed.mutable_cause()->set_message("no device");
    return failed;
  }

  EpochAccount epochs{{}, MonoTime{0}};
  WorkerRoster roster{Part(), &epochs};
};

TEST_CASE("a worker is usable unless something keeps it from work") {
  const std::vector<void (*)(JobWorker&)> reasons = {
      [](JobWorker& w) { w.ready = false; },
      [](JobWorker& w) { w.silent = true; },
      [](JobWorker& w) { w.called_back = true; },
      [](JobWorker& w) { w.leaving = true; },
      [](JobWorker& w) { w.stuck = true; },
      [](JobWorker& w) { w.backoff_until = seconds(9); },
      [](JobWorker& w) { w.aside_until = seconds(9); }};
  for (const auto reason : reasons) {
    Fixture f;
    JobWorker& worker = f.Add(7);
    CHECK(f.roster.Usable(worker, f.host.Now()));
    reason(worker);
    CHECK_FALSE(f.roster.Usable(worker, f.host.Now()));
  }
}

TEST_CASE("the text of the wait for workers names the reason") {
  Fixture f;
  CHECK(f.roster.WaitingFor() == "workers: none is connected");
  f.roster.SetElsewhere(1);
  CHECK(f.roster.WaitingFor() == "workers: the only connected worker serves other jobs now");
  f.roster.SetElsewhere(3);
  CHECK(f.roster.WaitingFor() == "workers: all 3 connected workers serve other jobs now");
  JobWorker& worker = f.Add(7);
  CHECK(f.roster.WaitingFor().empty());
  worker.silent = true;
  CHECK_THAT(f.roster.WaitingFor(), Contains("have sent no report since they registered"));
  worker.silent = false;
  worker.backoff_until = f.host.Now() + milliseconds(1500);
  CHECK_THAT(f.roster.WaitingFor(), Contains("back off after repeated deaths: worker/7 for 1.5 s"));
  worker.stuck = true;
  CHECK(f.roster.WaitingFor() == "workers: set aside because they made no progress: worker/7");
  f.roster.SetAside(worker, f.Lacks(), false);
  CHECK(f.roster.WaitingFor() ==
        "workers: none of the connected workers can take part in the job: worker/7 (no device)");
}

TEST_CASE("a worker that lacks something gives back its work and is told of once") {
  Fixture f;
  f.Add(8, /*process=*/2);
  JobWorker& worker = f.Add(7);
  f.Hold(worker, 3);
  CHECK(f.roster.SetAside(worker, f.Lacks(), false));
  CHECK(f.roster.IsAside(1));
  CHECK(worker.recalled == 1);
  const auto sent = f.Take(TaskId(7));
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].recall().closure() == 3);
  CHECK(f.roster.SetAside(worker, f.Lacks(), false));
  CHECK(std::count_if(f.said.begin(), f.said.end(), [](const std::string& line) {
          return line.find("cannot take part in the job") != std::string::npos;
        }) == 1);
  v1::JobStatus status;
  f.roster.FillStatus({}, &status);
  CHECK(status.workers(0).state() == "unfit");
  f.roster.SetFit(worker);
  CHECK_FALSE(f.roster.IsAside(1));
  CHECK(f.roster.UnfitOf(worker) == nullptr);
}

TEST_CASE("a status has the workers that are here and those that are gone, by identity") {
  Fixture f;
  f.Add(7);
  std::map<std::string, v1::WorkerRow> rows;
  rows["5"].set_state("gone");
  rows["7"].set_state("gone");
  rows["7"].set_steps(4);
  v1::JobStatus status;
  f.roster.FillStatus(rows, &status);
  REQUIRE(status.workers_size() == 2);
  CHECK(status.workers(0).state() == "gone");
  CHECK(status.workers(1).state() == "idle");
  CHECK(status.workers(1).steps() == 4);
}

TEST_CASE("where nobody fits, callers are told, and others wait for a worker that can") {
  Fixture f;
  JobWorker& worker = f.Add(7);
  CHECK(f.roster.SetAside(worker, f.Lacks(), /*has_callers=*/false));
  CHECK_FALSE(f.roster.SetAside(worker, f.Lacks(), /*has_callers=*/true));
  f.plan.reset();  // as before a worker has described the job
  CHECK_FALSE(f.roster.SetAside(worker, f.Lacks(), false));
  f.roster.SetElsewhere(1);
  CHECK(f.roster.SetAside(worker, f.Lacks(), true));
}

TEST_CASE("a repair without its input waits as long for a worker that left as for a server") {
  Fixture f;
  v1::Failed repair = f.Lacks(v1::INPUT);
  repair.set_all_targets(false);
  JobWorker& worker = f.Add(7);
  CHECK_FALSE(f.roster.SetAside(worker, repair, false));
  f.roster.Forget(f.Add(8, /*process=*/2), /*counted=*/true);
  f.roster.workers().erase(TaskId(8));
  CHECK(f.roster.SetAside(worker, repair, false));
  f.host.clock.Advance(f.options.server_lost_after);
  CHECK_FALSE(f.roster.SetAside(worker, repair, false));
}

TEST_CASE("work that does not advance has stalled, unless something else is in its way") {
  const bool paused = GENERATE(false, true), window = GENERATE(false, true),
             server_gone = GENERATE(false, true);
  Fixture f;
  f.Place();
  JobWorker& worker = f.Add(7);
  f.Add(8);  // this worker holds no work
  f.Hold(worker, 3);
  if (paused) worker.progress.set_state("paused");
  if (server_gone) f.shards.Find(f.kSecond)->ready = false;
  f.host.clock.Advance(f.options.step_timeout);
  const bool stalls = !paused && !window && !server_gone;
  CHECK(f.roster.Stalled(window) ==
        (stalls ? std::vector<TaskId>{TaskId(7)} : std::vector<TaskId>{}));
  CHECK(f.roster.Stalled(window).empty());  // the second check comes too soon after the first
}

TEST_CASE("a worker whose work was taken away counts as holding while it computes") {
  Fixture f;
  JobWorker& worker = f.Add(7);
  CHECK_FALSE(f.roster.Holds(TaskId(7)));
  f.Hold(worker, 3);
  CHECK(f.roster.Holds(TaskId(7)));
  worker.progress.set_computing(true);
  f.roster.TakeAll(&worker);
  CHECK(worker.held.empty());
  CHECK(f.roster.Holds(TaskId(7)));
}

TEST_CASE("a heartbeat replaces the worker's progress, and its texts are bounded") {
  Fixture f;
  JobWorker& worker = f.Add(7);
  const MonoTime before = worker.advanced_at;
  f.host.clock.Advance(seconds(1));
  v1::WorkerProgress said;
  said.set_state(std::string(100, 's'));
  said.set_awaits(std::string(1000, 'a'));
  said.set_waiting_for("memory");
  said.mutable_device()->set_name("cpu");
  f.roster.OnProgress(&worker, said);
  CHECK(worker.progress.state().size() == 64);
  CHECK(worker.progress.awaits().size() == 128);
  CHECK(worker.progress.waiting_for().empty());  // only a paused worker waits for something
  CHECK_FALSE(worker.progress.has_device());
  CHECK(worker.advanced_at == before);
  said.set_state("paused");
  said.set_running_step(1);
  f.roster.OnProgress(&worker, said);
  CHECK(worker.progress.waiting_for() == "memory");
  CHECK(worker.advanced_at == f.host.Now());
}

TEST_CASE("a worker whose work was taken away gets work again once it computes nothing") {
  Fixture f;
  JobWorker& worker = f.Add(7);
  worker.stuck = true;
  v1::WorkerProgress said;
  said.set_computing(true);
  f.roster.OnProgress(&worker, said);
  CHECK(worker.stuck);
  CHECK(f.said.empty());
  said.set_computing(false);
  f.roster.OnProgress(&worker, said);
  CHECK_FALSE(worker.stuck);
  CHECK(f.Said("stall: worker/7 has stopped computing and may be given work again"));
}

TEST_CASE("a process that registers again keeps its state; another one only the rate") {
  const bool same = GENERATE(false, true);
  Fixture f;
  JobWorker& former = f.Add(7);
  former.stuck = true;
  former.progress.set_state("running");
  v1::Hello hello;
  hello.set_process_uid(same ? 1 : 2);
  JobWorker next = f.roster.Make(TaskId(9), "7", MonoTime{0}, hello);
  f.roster.Replace(former, /*counted=*/true, &next);
  CHECK(next.stuck == same);
  CHECK(next.progress.state() == (same ? "running" : ""));
}

TEST_CASE("a wait for memory is told when it begins and when it is over") {
  Fixture f;
  JobWorker& worker = f.Add(7);
  f.roster.TellPauses();
  CHECK(f.said.empty());
  worker.progress.set_state("paused");
  worker.progress.set_waiting_for("memory at ps_server/0");
  f.roster.TellPauses();
  f.roster.TellPauses();
  CHECK(f.roster.WaitingForPauses() == "memory at ps_server/0 (worker/7)");
  worker.progress.set_state("running");
  f.roster.TellPauses();
  REQUIRE(f.said.size() == 2);
  CHECK(f.said[0] ==
        "warning: paused (on_over_budget: pause): worker/7 waits for memory at ps_server/0");
  CHECK(f.said[1] == "state: resumed: no push waits for memory any more");
}

TEST_CASE("a deterministic job uses one worker; others have no pin") {
  Fixture f;
  f.Add(7);
  JobWorker& second = f.Add(8, /*process=*/2);
  CHECK_FALSE(f.roster.Pinned().Excludes(second));
  Fixture one;
  one.id.spec.strategy.deterministic = true;
  JobWorker& chosen = one.Add(7);
  JobWorker& other = one.Add(8, /*process=*/2);
  CHECK(one.roster.Pinned().worker == &chosen);
  CHECK(one.roster.Pinned().Excludes(other));
}

}  // namespace
}  // namespace evergrad::coordinator

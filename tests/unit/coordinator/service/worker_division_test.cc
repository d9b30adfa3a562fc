// Tests how workers are divided among jobs. The host of the division only records its calls.
#include "coordinator/service/worker_division.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <string>

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

constexpr JobUid kA(1), kB(2), kC(3);

struct FakeHost final : DivisionHost {
  struct Job {
    double share = 1;
    std::uint32_t useful = 100, busy = 0, elsewhere = 0;
    bool keeps = false, over = false;
    std::optional<std::set<std::string>> functions;
    std::set<TaskId> holds, unfit;
  };
  struct Worker {
    std::set<std::string> functions;
    bool leaving = false, cordoned = false;
  };
  std::vector<JobUid> RunningJobs() const override {
    std::vector<JobUid> running;
    for (const JobUid job : order) {
      if (!jobs.at(job).over) running.push_back(job);
    }
    return running;
  }
  bool IsRunning(JobUid job) const override { return jobs.contains(job) && !jobs.at(job).over; }
  double Share(JobUid job) const override { return jobs.at(job).share; }
  std::uint32_t UsefulWorkers(JobUid job) const override { return jobs.at(job).useful; }
  std::uint32_t BusyWorkers(JobUid job, std::chrono::milliseconds) const override {
    return jobs.at(job).busy;
  }
  bool KeepsItsWorker(JobUid job) const override { return jobs.at(job).keeps; }
  std::optional<std::set<std::string>> WantedFunctions(JobUid job) const override {
    return jobs.at(job).functions;
  }
  bool Holds(JobUid job, TaskId worker) const override {
    return jobs.at(job).holds.contains(worker);
  }
  std::vector<TaskId> Workers() const override {
    std::vector<TaskId> present;
    for (const auto& [task, worker] : workers) {
      if (!worker.leaving && !worker.cordoned) present.push_back(task);
    }
    return present;
  }
  bool IsLeavingOrGone(TaskId worker) const override {
    return !workers.contains(worker) || workers.at(worker).leaving;
  }
  bool IsCordoned(TaskId worker) const override {
    return workers.contains(worker) && workers.at(worker).cordoned;
  }
  bool IsUnfit(JobUid job, TaskId worker) const override {
    return jobs.at(job).unfit.contains(worker);
  }
  bool HasOneOf(TaskId worker, const std::set<std::string>& functions) const override {
    const auto& has = workers.at(worker).functions;
    return std::any_of(has.begin(), has.end(),
                       [&](const std::string& f) { return functions.contains(f); });
  }
  void CallBack(JobUid job, TaskId worker) override { Say("call ", job, worker); }
  void Introduce(JobUid job, TaskId worker) override {
    Say("introduce ", job, worker);
    division->Assign(worker, job);
  }
  void Release(JobUid job, TaskId worker, JobUid) override { Say("release ", job, worker); }
  void SetWorkersElsewhere(JobUid job, std::uint32_t count) override {
    jobs.at(job).elsewhere = count;
  }
  void Say(const std::string& what, JobUid job, TaskId worker) {
    said.push_back(what + std::to_string(job.value()) + " " + std::to_string(worker.value()));
  }

  WorkerDivision* division = nullptr;
  std::vector<JobUid> order;
  std::map<JobUid, Job> jobs;
  std::map<TaskId, Worker> workers;
  std::vector<std::string> said;
};

struct Stage {
  FakeHost host;
  WorkerDivision division{&host, std::chrono::seconds(10)};
  MonoTime now{std::chrono::hours(1)};

  explicit Stage(int workers) {
    host.division = &division;
    for (int i = 1; i <= workers; ++i) host.workers[TaskId(static_cast<std::uint64_t>(i))];
  }
  FakeHost::Job& Begin(JobUid job) {
    host.order.push_back(job);
    division.Begin(job);
    return host.jobs[job];
  }
  std::vector<std::string> Divide() {
    host.said.clear();
    now += std::chrono::milliseconds(100);
    division.Tick(now, true);
    return host.said;
  }
  using Said = std::vector<std::string>;
};

}  // namespace

TEST_CASE("one job gets all workers at once, and later workers when they register") {
  Stage stage(2);
  stage.Begin(kA);
  CHECK(stage.Divide() == Stage::Said{"introduce 1 1", "introduce 1 2"});
  CHECK(stage.Divide().empty());
  stage.host.workers[TaskId(3)];
  CHECK(stage.Divide() == Stage::Said{"introduce 1 3"});
  CHECK(stage.division.workers(kA) == 3);
}

TEST_CASE(
    "a second job gets its share from idle workers at once, and from others once they hold "
    "nothing") {
  Stage stage(4);
  stage.Begin(kA);
  stage.Divide();
  stage.host.jobs[kA].holds = {TaskId(1), TaskId(2), TaskId(4)};
  stage.Begin(kB);
  CHECK(stage.Divide() == Stage::Said{"call 1 3", "call 1 4", "release 1 3", "introduce 2 3"});
  CHECK(stage.host.jobs[kB].elsewhere == 4);
  CHECK(stage.division.JobOf(TaskId(4)) == kA);
  CHECK(stage.Divide().empty());  // worker 4 still holds work, so it is not moved
  stage.host.jobs[kA].holds.erase(TaskId(4));
  stage.host.said.clear();
  stage.division.Tick(stage.now, true);  // worker 4 is free now and is moved by the next tick
  CHECK(stage.host.said == Stage::Said{"release 1 4", "introduce 2 4"});
  CHECK(stage.division.workers(kA) == 2);
  CHECK(stage.division.workers(kB) == 2);
}

TEST_CASE("workers are divided by share, and no job gets more than it can use") {
  Stage stage(6);
  stage.Begin(kA).share = 2;
  stage.Begin(kB);
  stage.Divide();
  CHECK(stage.division.workers(kA) == 4);
  CHECK(stage.division.workers(kB) == 2);
  Stage small(6);
  small.Begin(kA).useful = 1;
  small.Begin(kB);
  small.Divide();
  CHECK(small.division.workers(kA) == 1);
  CHECK(small.division.workers(kB) == 5);
}

TEST_CASE("a functions job gets workers that have one of its functions") {
  Stage stage(3);
  stage.host.workers[TaskId(2)].functions = {"fit"};
  stage.Begin(kA);
  stage.Divide();
  FakeHost::Job& functions = stage.Begin(kB);
  functions.functions = std::set<std::string>{"fit"};
  functions.useful = 3;
  CHECK(stage.Divide() == Stage::Said{"call 1 2", "release 1 2", "introduce 2 2"});
  CHECK(stage.division.workers(kB) == 1);
}

TEST_CASE("a job with a worker that cannot take part gets another job's worker") {
  Stage stage(2);
  stage.Begin(kA);
  stage.Begin(kB);
  stage.Divide();
  REQUIRE(stage.division.JobOf(TaskId(1)) == kA);
  REQUIRE(stage.division.JobOf(TaskId(2)) == kB);
  stage.host.jobs[kA].unfit = {TaskId(1)};
  CHECK(stage.Divide() == Stage::Said{"call 1 1", "call 2 2", "release 1 1", "introduce 2 1",
                                      "release 2 2", "introduce 1 2"});
}

TEST_CASE("jobs take turns at a worker, but the worker of a deterministic job stays") {
  Stage stage(1);
  stage.Begin(kA);
  stage.Begin(kB);
  stage.Divide();
  const JobUid first = *stage.division.JobOf(TaskId(1));
  const auto run = [&] {
    for (int i = 0; i < 150; ++i) stage.Divide();
  };
  run();
  const JobUid second = *stage.division.JobOf(TaskId(1));
  CHECK(second != first);
  stage.host.jobs[second].keeps = true;
  run();
  CHECK(stage.division.JobOf(TaskId(1)) == second);
  CHECK(stage.division.worker_seconds(first) > 9);
  CHECK(stage.division.worker_seconds(second) > 9);
}

TEST_CASE("a job that begins gets no compensation for the time before it") {
  Stage stage(2);
  stage.Begin(kA);
  for (int i = 0; i < 100; ++i) stage.Divide();
  CHECK(stage.division.worker_seconds(kA) > 19);
  stage.Begin(kB);
  CHECK(stage.division.worker_seconds(kB) == 0);
  stage.Divide();
  // If the service of a new job were counted from 0, the job would get both workers in the next
  // turns.
  for (int i = 0; i < 200; ++i) {
    stage.Divide();
    CHECK(stage.division.workers(kB) == 1);
  }
}

TEST_CASE("workers of an ended job serve no job, and move to a running one") {
  Stage stage(2);
  stage.Begin(kA);
  stage.Divide();
  stage.host.jobs[kA].over = true;
  stage.division.End(kA);
  CHECK_FALSE(stage.division.JobOf(TaskId(1)));
  CHECK_FALSE(stage.division.JobFor(TaskId(1)));
  stage.Begin(kC);
  CHECK(stage.division.JobFor(TaskId(1)) == kC);
  CHECK(stage.Divide() == Stage::Said{"introduce 3 1", "introduce 3 2"});
}

TEST_CASE("a leaving worker is not called back, and no worker moves before the end of the window") {
  Stage stage(2);
  stage.Begin(kA);
  stage.division.Tick(stage.now, /*may_divide=*/false);
  CHECK(stage.host.said.empty());
  stage.Divide();
  stage.Begin(kB);
  stage.host.workers[TaskId(1)].leaving = stage.host.workers[TaskId(2)].leaving = true;
  CHECK(stage.Divide().empty());
}

TEST_CASE("a worker that registers goes to the job that lacks most workers") {
  Stage stage(4);
  stage.Begin(kA);
  stage.Divide();
  stage.Begin(kB);
  CHECK(stage.division.JobFor(TaskId(9)) == kB);
}

TEST_CASE("a cordoned worker gives back its work, serves no job, and is introduced again later") {
  Stage stage(2);
  stage.Begin(kA);
  stage.Divide();
  stage.host.jobs[kA].holds = {TaskId(1)};
  stage.host.workers[TaskId(1)].cordoned = true;
  CHECK(stage.Divide() == Stage::Said{"call 1 1"});
  CHECK(stage.Divide().empty());  // it still holds work, and is called back once
  CHECK_FALSE(stage.division.JobFor(TaskId(1)));
  stage.host.jobs[kA].holds.clear();
  CHECK(stage.Divide() == Stage::Said{"release 1 1"});
  CHECK(stage.division.workers(kA) == 1);
  CHECK(stage.Divide().empty());
  stage.host.workers[TaskId(1)].cordoned = false;
  CHECK(stage.Divide() == Stage::Said{"introduce 1 1"});
}

TEST_CASE("a cordoned worker that was called back for another job serves no job") {
  Stage stage(2);
  stage.Begin(kA);
  stage.Divide();
  stage.host.jobs[kA].holds = {TaskId(1), TaskId(2)};
  stage.Begin(kB);
  CHECK(stage.Divide() == Stage::Said{"call 1 2"});
  stage.host.workers[TaskId(2)].cordoned = true;
  stage.Divide();
  stage.host.jobs[kA].holds.erase(TaskId(2));
  const Stage::Said said = stage.Divide();
  CHECK(std::find(said.begin(), said.end(), "release 1 2") != said.end());
  CHECK(std::find(said.begin(), said.end(), "introduce 2 2") == said.end());
}

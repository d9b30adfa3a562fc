// Tests single runs of attempts. The test acts as the owner of the run, and triggers every event.
#include "worker/runner/attempt_run.h"

#include <catch2/catch.hpp>

#include "tests/support/manual_executor.h"
#include "worker/runner/describe_run.h"
#include "worker/runner/export_run.h"

namespace evergrad::worker {
namespace {

// Releases the run in each call, as the runner does.
struct Owner final : AttemptOwner {
  void ReportDone(bool send_now) override { End(send_now ? "done" : "done, to be sent later"); }
  void Fail(const absl::Status& status) override { End(std::string(status.message())); }
  void FailCompute(const absl::Status& status) override { Fail(status); }
  void GiveUp(const AttemptReports::Dropped& dropped) override {
    End("gave up: " + dropped.reason);
  }
  void End(const std::string& how) {
    ends.push_back(how);
    if (how.starts_with("done")) run->FillDone(&done);
    run.reset();
  }
  std::shared_ptr<AttemptRun> run;
  std::vector<std::string> ends;
  v1::Done done;
};

struct Describing {
  Describing() {
    AttemptRun::Environment environment;
    environment.owner = &owner;
    environment.job = &job;
    environment.book = &book;
    environment.compute = &queue;
    environment.control = &control;
    environment.logger = &logger;
    environment.failpoints = &failpoints;
    Work work;
    work.job = job.uid();
    work.attempt = {1, 2};
    work.kind = WorkKind::kDescribe;
    owner.run = std::make_shared<DescribeRun>(environment, work, [this] { return described; });
  }
  void Start() {
    const auto starting = owner.run;
    starting->Start();
  }
  void Run() {
    while (compute.RunReady() + control.RunReady() > 0) {
    }
  }
  ManualClock clock;
  runtime::ManualExecutor control{&clock}, compute{&clock};
  ComputeQueue queue{&control, &compute};
  fault::Failpoints failpoints;
  log::Logger logger{[] {
    log::Options options;
    options.file = "/dev/null";
    return options;
  }()};
  metrics::Registry registry;
  metrics::Limit limit{registry, "data_bytes", "bytes", 1e9};
  AttemptBook book;
  // The result of the describe closure.
  absl::StatusOr<v1::DescribeResult> described = [] {
    v1::DescribeResult result;
    result.set_train_examples(40);
    return result;
  }();
  JobContext job{
      [] {
        v1::JobInfo info;
        info.set_job_uid(7);
        info.set_name("test");
        return info;
      }(),
      {std::make_shared<ComputeBackend>(BackendOptions{"cpu", 1, false, ""}), {}, &limit}};
  Owner owner;
};

TEST_CASE("a run is done once its computation has resumed, with its part of the report") {
  Describing d;
  d.Start();
  v1::WorkerProgress progress;
  d.owner.run->FillProgress(&progress);
  CHECK(progress.state() == "describing");
  CHECK(progress.running_attempt().n() == 2);
  d.compute.RunReady();
  CHECK(d.owner.ends.empty());
  d.Run();
  CHECK(d.owner.ends == std::vector<std::string>{"done"});
  CHECK(d.owner.done.describe().train_examples() == 40);
}

TEST_CASE("a description that fails ends the attempt with its error") {
  Describing d;
  d.described = absl::InvalidArgumentError("no examples");
  d.Start();
  d.Run();
  CHECK(d.owner.ends == std::vector<std::string>{"no examples"});
}

TEST_CASE("the continuations of a run that has ended do nothing") {
  Describing d;
  d.Start();
  d.compute.RunReady();
  d.owner.run.reset();
  d.Run();
  CHECK(d.owner.ends.empty());
}

TEST_CASE("the failpoint before a report fails it, delays it, or leaves it for the next session") {
  const auto [action, end] =
      GENERATE(table<std::string, std::string>({{"error", "failpoint: worker.before_done"},
                                                {"delay(5)", "done"},
                                                {"drop", "done, to be sent later"}}));
  Describing d;
  REQUIRE(d.failpoints.Arm("worker.before_done=" + action, 1).ok());
  d.Start();
  d.Run();
  CHECK(d.owner.ends.size() == (action == "delay(5)" ? 0u : 1u));
  d.control.Advance(std::chrono::milliseconds(5));
  CHECK(d.owner.ends == std::vector<std::string>{end});
}

TEST_CASE("a drain returns work without updates at once, unless its report is in flight") {
  Describing running;
  running.Start();
  const auto run = running.owner.run;
  run->Drain(std::chrono::milliseconds(100));
  CHECK(running.owner.ends == std::vector<std::string>{"gave up: draining"});

  Describing reporting;
  REQUIRE(reporting.failpoints.Arm("worker.before_done=delay(500)", 1).ok());
  reporting.Start();
  reporting.Run();
  const auto reported = reporting.owner.run;
  reported->Drain(std::chrono::milliseconds(100));
  CHECK(reporting.owner.ends.empty());
  reporting.control.Advance(std::chrono::milliseconds(100));
  CHECK(reporting.owner.ends == std::vector<std::string>{"gave up: draining"});
}

TEST_CASE("a repeated problem is a warning once a minute") {
  ManualClock clock;
  WarningInterval interval;
  CHECK(interval.Warn(&clock));
  CHECK_FALSE(interval.Warn(&clock));
  clock.Advance(std::chrono::seconds(60));
  CHECK(interval.Warn(&clock));
  CHECK(interval.Warn(nullptr));
}

}  // namespace
}  // namespace evergrad::worker

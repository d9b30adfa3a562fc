// Tests how the input of a job is opened, with generated data (format: synthetic).
#include "worker/runner/input_opener.h"

#include <catch2/catch.hpp>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "tests/support/manual_executor.h"
#include "worker/runner/batch_streams.h"
#include "worker/runner/job_kind.h"
#include "worker/runner/shortfall.h"

namespace evergrad::worker {
namespace {

constexpr char kYaml[] = R"(
apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: made}
spec:
  data:
    train: {format: synthetic, examples: 40, seed: 7}
    fields:
      numbers: {type: float, size: 3}
      click: {type: label}
    batch_size: 8
  model:
    inputs: {numbers: {shape: [3]}}
    layers: [{name: logit, type: dense, units: 1}]
    losses: {type: binary_crossentropy, from_logits: true, output: logit, labels: click}
  optimizer: {type: sgd, learning_rate: 0.1}
  training: {epochs: 1, steps_per_closure: 2}
)";
constexpr char kCounting[] = R"(
apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: test}
spec:
  type: counting
  counting: {examples: 40, shards: 2}
  data: {batch_size: 8}
  training: {epochs: 1, steps_per_closure: 2}
)";
constexpr char kFunctions[] = R"(
apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: test}
spec:
  type: functions
  functions: {variables: [{name: w, shape: [3]}]}
  optimizer: {type: sgd, learning_rate: 0.1}
)";

v1::JobInfo Info(const std::string& yaml) {
  v1::JobInfo info;
  info.set_job_uid(7);
  info.set_name("test");
  info.set_yaml(yaml);
  info.set_seed(11);
  info.set_runs_folder("runs");
  return info;
}

// Returns a plan with examples for four closures, and with one variable, which has three rows in
// one shard.
v1::Plan PlanOf(std::uint64_t train_examples) {
  plan::PlanSpec spec;
  spec.train_examples = train_examples;
  spec.batch_size = 8;
  spec.steps_per_closure = 2;
  spec.epochs = 1;
  v1::Plan plan;
  client::FillPlan(spec, &plan);
  v1::ShardSpec& shard = *plan.add_shards();
  shard.mutable_variable()->set_name("logit/kernel");
  shard.mutable_variable()->add_shape(3);
  shard.mutable_variable()->set_dtype(v1::DTYPE_FLOAT32);
  shard.set_row_end(3);
  return plan;
}

Work Training(std::uint64_t closure, std::uint64_t attempt = 1) {
  Work work;
  work.job = JobUid(7);
  work.closure = ClosureId(closure);
  work.attempt = {1, attempt};
  return work;
}

struct Opening {
  explicit Opening(const std::string& yaml = kYaml,
                   const std::vector<const JobKind*>& more_kinds = {})
      : job(Info(yaml), {std::make_shared<ComputeBackend>(BackendOptions{"cpu", 1, false, ""}),
                         {},
                         &limit,
                         nullptr,
                         more_kinds}) {
    opener = std::make_shared<InputOpener>(
        InputOpener::Environment{&control, &queue, &failpoints, &clock}, job.compute(),
        [this](Attempt attempt, const absl::Status& status) {
          told.emplace_back(attempt, status);
        });
  }
  void Plan(std::uint64_t train_examples, const std::string& fingerprint = "") {
    v1::JobInfo info = Info("");
    *info.mutable_plan() = PlanOf(train_examples);
    info.mutable_plan()->set_data_fingerprint(fingerprint);
    job.Learn(info);
    REQUIRE(job.Check(WorkKind::kTrain).ok());
  }
  void Run() {
    while (control.RunReady() + compute.RunReady() > 0) {
    }
  }
  bool Open(const Work& work) { return opener->Open(job.NeedsOf(work.kind), work.attempt); }

  ManualClock clock;
  runtime::ManualExecutor control{&clock}, compute{&clock};
  ComputeQueue queue{&control, &compute};
  fault::Failpoints failpoints;
  metrics::Registry registry;
  metrics::Limit limit{registry, "data_bytes", "bytes", 1e9};
  JobContext job;
  std::vector<std::pair<Attempt, absl::Status>> told;
  std::shared_ptr<InputOpener> opener;
};

TEST_CASE("work needs a job that can be read, and, except for a describe, a plan") {
  Opening opening;
  CHECK(opening.job.Check(WorkKind::kDescribe).ok());
  CHECK(opening.job.Check(WorkKind::kTrain).code() == absl::StatusCode::kFailedPrecondition);
  opening.Plan(40);
  CHECK(opening.job.CheckPlanHas(Training(2)).ok());
  CHECK_THAT(std::string(opening.job.CheckPlanHas(Training(3)).message()),
             Catch::Contains("closures=3 got=3"));
  Work work = Training(0);
  work.all_targets = false;
  work.targets = {ShardId(1)};
  CHECK_THAT(std::string(opening.job.CheckPlanHas(work).message()),
             Catch::Contains("shards=1 got=1"));
  work.kind = WorkKind::kEvaluate;
  CHECK_THAT(std::string(opening.job.CheckPlanHas(work).message()), Catch::Contains("evaluation"));

  Opening unreadable("kind: [");
  CHECK(unreadable.job.spec() == nullptr);
  CHECK(ShortfallOf(unreadable.job.Check(WorkKind::kDescribe)) == Shortfall::kAbility);
  CHECK(opening.job.reads_data());
}

TEST_CASE("a job of a type that the worker lacks is refused; a main program can add the type") {
  const absl::Status refused = Opening(kCounting).job.Check(WorkKind::kDescribe);
  CHECK(ShortfallOf(refused) == Shortfall::kAbility);
  CHECK(refused.message() ==
        "jobs of this type run only on daemons started with --failpoints: spec.type=counting");

  struct MoreJobs final : JobKind {
    absl::string_view type() const override { return "counting"; }
    absl::Status Check(WorkKind kind) const override {
      return kind == WorkKind::kExport ? absl::InternalError("no export") : absl::OkStatus();
    }
    std::shared_ptr<AttemptRun> MakeRun(const Parts&, const Work&) const override {
      return nullptr;
    }
  } more;
  const Opening added(kCounting, {&more});
  CHECK(added.job.Check(WorkKind::kDescribe).ok());
  CHECK(added.job.Check(WorkKind::kExport).message() == "no export");
  CHECK(&added.job.kind() == &more);
  CHECK_FALSE(added.job.reads_data());
}

TEST_CASE("a functions job opens no input, and no worker describes it") {
  Opening opening(kFunctions);
  CHECK(opening.Open(Training(0)));
  CHECK(opening.job.Check(WorkKind::kDescribe).message() ==
        "a worker cannot describe a functions job");
  CHECK_FALSE(opening.job.reads_data());
}

TEST_CASE("input is opened once, on the compute executor, for the attempt that asked first") {
  Opening opening;
  CHECK_FALSE(opening.Open(Training(0, 1)));
  CHECK_FALSE(opening.Open(Training(0, 2)));
  CHECK(opening.opener->opening());
  opening.Run();
  REQUIRE(opening.told.size() == 1);
  CHECK(opening.told[0].first == Attempt{1, 1});
  CHECK(opening.told[0].second.ok());
  CHECK_FALSE(opening.opener->opening());
  REQUIRE(opening.opener->train() != nullptr);
  CHECK(opening.opener->train()->examples() == 40);
  CHECK(opening.opener->eval() == nullptr);
  CHECK(opening.Open(Training(0, 3)));
}

TEST_CASE("an input that cannot be opened is reported, and tried again at the next call") {
  Opening opening;
  REQUIRE(opening.failpoints.Arm("worker.open_data=1*error", 1).ok());
  CHECK_FALSE(opening.Open(Training(0)));
  opening.Run();
  REQUIRE(opening.told.size() == 1);
  CHECK_FALSE(opening.told[0].second.ok());
  CHECK_FALSE(opening.Open(Training(0)));
  opening.Run();
  REQUIRE(opening.told.size() == 2);
  CHECK(opening.told[1].second.ok());
}

TEST_CASE("an opener that has ended is not called by its opening") {
  Opening opening;
  CHECK_FALSE(opening.Open(Training(0)));
  opening.opener.reset();
  opening.Run();
  CHECK(opening.told.empty());
}

TEST_CASE("data other than the plan's are an input error, and are opened again once a second") {
  Opening opening;
  opening.Plan(41);
  CHECK_FALSE(opening.Open(Training(0)));
  opening.Run();
  const absl::Status status = opening.opener->CheckData(opening.job, Training(0));
  CHECK(ShortfallOf(status) == Shortfall::kInput);
  CHECK_THAT(std::string(status.message()),
             Catch::Contains("source=train want=41 examples got=40"));
  // The data was opened a moment ago, so it is not opened again yet.
  CHECK(opening.Open(Training(0)));
  opening.clock.Advance(std::chrono::seconds(1));
  CHECK_FALSE(opening.opener->CheckData(opening.job, Training(0)).ok());
  CHECK(opening.opener->train() == nullptr);
  CHECK_FALSE(opening.Open(Training(0)));
  opening.Run();
  CHECK(opening.opener->train() != nullptr);
}

TEST_CASE("an error about data of another fingerprint names the closure that needs the data") {
  Opening opening;
  opening.Plan(40, "first\nsecond");
  CHECK_FALSE(opening.Open(Training(1)));
  opening.Run();
  const absl::Status status = opening.opener->CheckData(opening.job, Training(1));
  CHECK(ShortfallOf(status) == Shortfall::kInput);
  CHECK_THAT(std::string(status.message()), Catch::Contains("closure=1 epoch=1 examples=[16,32)") &&
                                                Catch::Contains("want=first, second got="));
  opening.Plan(40, "");  // the plan that is known is still used
  CHECK_FALSE(opening.opener->CheckData(opening.job, Training(1)).ok());
  Opening same;
  CHECK_FALSE(same.Open(Training(1)));
  same.Run();
  same.Plan(40, same.opener->train()->Fingerprint());
  CHECK(same.opener->CheckData(same.job, Training(1)).ok());
}

TEST_CASE("the streams of the next closures are open before they begin, and no others") {
  Opening opening;
  opening.Plan(40);
  CHECK_FALSE(opening.Open(Training(0)));
  opening.Run();
  BatchStreams streams({}, &opening.registry);
  std::vector<AttemptBook::Held> held(4);
  for (std::uint64_t i = 0; i < held.size(); ++i) held[i].work = Training(i % 3, 10 + i);
  held[1].begun = true;
  streams.Open(opening.job, *opening.opener, Training(0), held);
  const auto examples = [&](Attempt attempt) {
    runtime::WaitableEvent read;
    std::vector<std::uint64_t> indices;
    streams.Next(attempt, [&](absl::StatusOr<ReadyBatch> batch) {
      if (batch.ok()) indices = batch->examples;
      read.Set();
    });
    read.Wait();
    return indices;
  };
  CHECK(examples({1, 1}) == opening.job.plan()->Batch(ClosureId(0), UpdateIndex(0)));
  CHECK(examples({1, 1}) == opening.job.plan()->Batch(ClosureId(0), UpdateIndex(1)));
  CHECK(examples({1, 10}) == opening.job.plan()->Batch(ClosureId(0), UpdateIndex(0)));
  CHECK(examples({1, 12}) == opening.job.plan()->Batch(ClosureId(2), UpdateIndex(0)));
  streams.Close({1, 12});
  streams.Open(opening.job, *opening.opener, Training(2, 12), {});
  // The stream was read from its beginning once more.
  CHECK(examples({1, 12}) == opening.job.plan()->Batch(ClosureId(2), UpdateIndex(0)));
}

}  // namespace
}  // namespace evergrad::worker

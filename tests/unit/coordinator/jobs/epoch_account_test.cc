// Tests the counts, sums and barriers of a job's epochs, and the epochs' lines in metrics.jsonl.
// There is no Job object.
#include "coordinator/jobs/epoch_account.h"

#include <catch2/catch.hpp>
#include <cmath>

#include <nlohmann/json.hpp>

#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Lines final : LineSink {
  bool Add(const std::string& json, bool) override {
    if (full) return false;
    all.push_back(nlohmann::json::parse(json));
    return true;
  }
  std::vector<nlohmann::json> OfKind(const std::string& kind) const {
    std::vector<nlohmann::json> found;
    for (const auto& line : all) {
      if (line["kind"] == kind) found.push_back(line);
    }
    return found;
  }
  bool full = false;
  std::vector<nlohmann::json> all;
};

// There are three epochs of two closures. Each closure has two steps of four examples. An
// evaluation of two closures follows the second and the third epoch.
struct Fixture {
  explicit Fixture(EpochAccount::Options options = {.epochs = 3, .evaluate_every = 2})
      : account(options, MonoTime{0}) {
    account.SetPlan(&plan);
    account.BeginPlan();
    account.StartClock(seconds(1));
  }
  EpochAccount::Context At(MonoTime now) { return {now, 77, &lines}; }
  void Count(std::uint64_t c, MonoTime now, double loss_sum = 8, std::uint64_t examples = 8) {
    std::vector<TrainedStep> steps;
    for (std::uint64_t s = 2 * c; s < 2 * c + 2; ++s) steps.push_back({s, loss_sum / 8, 4});
    account.Count(ClosureId(c), examples, loss_sum, steps, dead, At(now));
  }
  v1::JobStatus Status(EpochAccount::View view = {
                           .active = true, .training = true, .planned = true}) const {
    v1::JobStatus status;
    account.FillStatus(view, &status);
    return status;
  }

  plan::Plan plan = *plan::Plan::Create({.train_examples = 16,
                                         .batch_size = 4,
                                         .steps_per_closure = 2,
                                         .epochs = 3,
                                         .shuffle = false,
                                         .eval_examples = 8,
                                         .eval_batch_size = 4,
                                         .eval_steps_per_closure = 1});
  IntervalSet dead;
  Lines lines;
  EpochAccount account;
};

TEST_CASE("the largest number of closures between two barriers is the one before the first") {
  CHECK(Fixture().account.ClosuresBetweenBarriers() == 4);
  CHECK(Fixture({.epochs = 3, .evaluate_every = 0}).account.ClosuresBetweenBarriers() == 6);
  CHECK(Fixture({.epochs = 3, .evaluate_every = 9}).account.ClosuresBetweenBarriers() == 6);
}

TEST_CASE("closures are added in their order, whichever ends first") {
  Fixture f;
  f.Count(1, seconds(2), 16);
  CHECK(f.account.succeeded() == 1);
  CHECK(f.account.folded() == 0);
  CHECK(f.account.waiting() == 1);
  CHECK(f.lines.all.empty());
  f.Count(0, seconds(3), 8);
  CHECK(f.account.folded() == 2);
  CHECK(f.account.waiting() == 0);
  const auto steps = f.lines.OfKind("step");
  REQUIRE(steps.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) CHECK(steps[i]["step"] == i);
  const auto epochs = f.lines.OfKind("epoch");
  REQUIRE(epochs.size() == 1);
  CHECK(epochs[0]["train_loss"] == 1.5);
  CHECK(epochs[0]["seconds"] == 2.0);
  CHECK(epochs[0]["examples_per_second"] == 8.0);
  CHECK(epochs[0]["eval_loss"].is_null());
  CHECK(epochs[0]["wall_ms"] == 77);
}

TEST_CASE("a dead closure is skipped, and its measurements are not awaited") {
  Fixture f;
  f.dead.Add(0);
  f.Count(1, seconds(2), 16);
  CHECK(f.account.folded() == 2);
  CHECK(f.lines.OfKind("epoch")[0]["train_loss"] == 2.0);
}

TEST_CASE("a worker cannot report more examples than the plan gives to the closure") {
  Fixture f;
  const EpochAccount::Counted counted =
      f.account.Count(ClosureId(0), 1000, 8, {}, f.dead, f.At(seconds(2)));
  CHECK(counted.examples == 8);
  CHECK(counted.steps == 2);
}

TEST_CASE("steps that do not belong to the closure make no line") {
  Fixture f;
  f.account.Count(ClosureId(0), 8, 8, {{5, 1.0, 4}, {1, 2.0, 4}}, f.dead, f.At(seconds(2)));
  const auto steps = f.lines.OfKind("step");
  REQUIRE(steps.size() == 1);
  CHECK(steps[0]["step"] == 1);
}

TEST_CASE(
    "an evaluation is due at its barrier, does not count as training time, and adds its line") {
  Fixture f;
  CHECK(f.account.barrier() == 2);
  CHECK(f.account.BarrierClosure() == 4);
  for (std::uint64_t c = 0; c < 4; ++c) f.Count(c, seconds(2 + c));
  // The line of the second epoch is written only after the evaluation.
  CHECK(f.lines.OfKind("epoch").size() == 1);
  CHECK(f.Status().epoch_rows_size() == 1);
  REQUIRE(f.account.EvaluationDue());
  f.account.BeginEvaluation(seconds(6));
  f.account.FinishEvaluation({{{"loss", 0.5}, {"accuracy", 0.9}, {"auc", 0.7}}, {}}, seconds(16));
  CHECK_FALSE(f.account.EvaluationDue());
  REQUIRE(f.account.PassBarrier(f.At(seconds(16))));
  CHECK(f.account.barrier() == 3);
  const auto epochs = f.lines.OfKind("epoch");
  REQUIRE(epochs.size() == 2);
  CHECK(epochs[1]["eval_loss"] == 0.5);
  CHECK(epochs[1]["eval_accuracy"] == 0.9);
  CHECK(epochs[1]["eval_auc"] == 0.7);
  f.Count(4, seconds(17));
  f.Count(5, seconds(18));
  CHECK(f.Status({.ended = true, .planned = true}).epoch_rows(2).seconds() == 3.0);
  CHECK_FALSE(f.account.PassBarrier(f.At(seconds(18))));
  CHECK(f.lines.OfKind("epoch").size() == 2);
  f.account.WriteEpochLines(f.At(seconds(19)));
  CHECK(f.lines.OfKind("epoch").size() == 3);
}

TEST_CASE("an invalidated evaluation is due again, and its time counts for no epoch") {
  Fixture f;
  for (std::uint64_t c = 0; c < 4; ++c) f.Count(c, seconds(2));
  f.account.BeginEvaluation(seconds(2));
  f.account.VoidEvaluation(/*under_way=*/true, seconds(5));
  CHECK(f.account.EvaluationDue());
  CHECK(f.account.evaluated() == 1);
  f.account.BeginEvaluation(seconds(5));
  f.account.FinishEvaluation({}, seconds(6));
  f.account.PassBarrier(f.At(seconds(6)));
  f.Count(4, seconds(7));
  f.Count(5, seconds(7));
  CHECK(f.Status({.ended = true, .planned = true}).epoch_rows(2).seconds() == 1.0);
}

TEST_CASE("an evaluation without a plan fills no row") {
  EpochAccount account({}, MonoTime{0});
  account.BeginEvaluation(seconds(2));
  account.FinishEvaluation({{{"loss", 0.5}}, {{"count", 14}}}, seconds(3));
  CHECK(account.evaluation().metrics.at("loss") == 0.5);
  CHECK(account.evaluated() == 0);
  account.VoidEvaluation(/*under_way=*/false, seconds(4));
  CHECK(account.evaluated() == 0);
  v1::JobStatus status;
  account.FillStatus({}, &status);
  CHECK(status.epoch_rows().empty());
}

TEST_CASE("the count of an evaluation is in the row and the line of its epoch") {
  Fixture f({.epochs = 3, .evaluate_every = 1, .counts_only = true});
  for (std::uint64_t c = 0; c < 2; ++c) f.Count(c, seconds(2));
  f.account.BeginEvaluation(seconds(2));
  f.account.FinishEvaluation({{}, {{"count", 14}}}, seconds(2));
  f.account.PassBarrier(f.At(seconds(2)));
  CHECK(f.lines.OfKind("epoch")[0]["count"] == 14);
  CHECK(f.Status().epoch_rows(0).counting_sum() == 14);
}

TEST_CASE("the remaining time follows from the speed, and is unknown before training") {
  Fixture f;
  f.Count(0, seconds(2));
  EpochAccount::View view{.active = true, .training = true, .planned = true, .rate = 16};
  CHECK(f.Status(view).examples_per_second() == 16);
  CHECK(f.Status(view).eta_seconds() == 2.5);  // 40 of 48 examples are left
  view.paused = true;
  CHECK(f.Status(view).examples_per_second() == 0);
  CHECK(f.Status(view).eta_seconds() == -1);
}

TEST_CASE("the work of former jobs counts as done, takes no time and keeps its numbers") {
  Fixture f;
  v1::Manifest manifest;
  const auto add = [&](const char* scope, std::uint32_t epoch, const char* name, double value) {
    v1::FinishedMetric* metric = manifest.add_metrics();
    metric->set_scope(scope);
    metric->set_epoch(epoch);
    metric->set_name(name);
    metric->set_value(value);
  };
  for (std::uint32_t epoch = 1; epoch <= 2; ++epoch) {
    add("train", epoch, "loss", epoch);
    // The earlier job had smaller batches, so each of its epochs had 10 steps. An epoch of the
    // present plan has 4 steps.
    add("train", epoch, "steps", 10);
  }
  add("eval", 2, "loss", 0.25);
  f.account.Resume(IntervalSet::Range(0, 5), f.dead, manifest, false, f.At(seconds(9)));
  CHECK(f.account.succeeded() == 5);
  CHECK(f.account.folded() == 5);
  // These are 20 steps of the two earlier epochs, and 2 steps of the fifth closure.
  CHECK(f.account.steps_done() == 22);
  CHECK(f.account.steps_total() == 24);
  CHECK(f.account.evaluated() == 2);
  CHECK(f.account.barrier() == 3);
  const auto epochs = f.lines.OfKind("epoch");
  REQUIRE(epochs.size() == 2);
  CHECK(epochs[1]["train_loss"] == 2.0);
  CHECK(epochs[1]["eval_loss"] == 0.25);
  CHECK(epochs[1]["steps"] == 10);
  CHECK(epochs[1]["seconds"] == 0.0);
  f.Count(5, seconds(10));
  CHECK(f.account.speed() == 8.0);  // the speed counts only the examples of this job
  CHECK(f.lines.OfKind("step").front()["step"] == 22);
}

TEST_CASE("an account is restored bit by bit from a snapshot and later notes") {
  Fixture f;
  for (const std::uint64_t c : {0, 2, 1}) f.Count(c, milliseconds(2100), 0.1 * (1 + c));
  v1::JobSnapshot snapshot;
  f.account.Fill(&snapshot);
  f.account.FillCounters(snapshot.mutable_counters());
  f.Count(3, milliseconds(2700), 0.3);

  Fixture back;
  REQUIRE(back.account.Read(snapshot, /*ended=*/false).ok());
  std::vector<TrainedStep> steps{{6, 0.3 / 8, 4}, {7, 0.3 / 8, 4}};
  back.account.Count(ClosureId(3), 8, 0.3, steps, back.dead, {milliseconds(2700)});
  CHECK(back.lines.all.empty());
  v1::JobSnapshot was, is;
  f.account.Fill(&was);
  back.account.Fill(&is);
  CHECK(is.SerializeAsString() == was.SerializeAsString());
}

TEST_CASE("a closure of the journal beyond the plan is refused, unless the job has ended") {
  v1::JobSnapshot snapshot;
  snapshot.add_unfolded()->set_closure(6);
  Fixture f;
  CHECK(absl::IsInvalidArgument(f.account.Read(snapshot, false)));
  Fixture ended;
  CHECK(ended.account.Read(snapshot, true).ok());
}

TEST_CASE("a manifest has the losses of whole epochs, and the metrics of valid evaluations") {
  Fixture f;
  for (std::uint64_t c = 0; c < 4; ++c) f.Count(c, seconds(2));
  v1::Manifest manifest;
  f.account.FillManifest(8, &manifest);
  REQUIRE(manifest.metrics_size() == 4);  // the loss and the number of steps of two epochs
  CHECK(manifest.metrics(0).name() == "loss");
  CHECK(manifest.metrics(0).global_step() == 4);
  f.account.BeginEvaluation(seconds(2));
  f.account.FinishEvaluation({{{"auc", 0.7}}, {}}, seconds(2));
  manifest.Clear();
  f.account.FillManifest(8, &manifest);
  CHECK(manifest.metrics(4).name() == "auc");
  CHECK(manifest.metrics(4).examples() == 8);
}

}  // namespace
}  // namespace evergrad::coordinator

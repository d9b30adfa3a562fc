// Tests a runner with a user's functions and real servers. Each push of a step must be applied
// exactly once, whatever is repeated.
#include <catch2/catch.hpp>

#include <cstring>

#include "absl/strings/str_replace.h"
#include "runner_fixture.h"

namespace evergrad::worker {
namespace {

using sdk::ClosureContext;
using sdk::Source;
using sdk::StepContext;

const char kYaml[] = R"(apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: test}
spec:
  type: functions
  functions:
    variables: [{name: a, shape: [ROWS]}, {name: b, shape: [1]}]
  optimizer: {type: sgd, learning_rate: 1}
)";

// Begins a job as the coordinator would plan it. `a` has `shards` shards, and `b` has one.
void Begin(Stage& stage, std::uint64_t rows_a = 4, std::uint64_t shards = 2) {
  stage.Submit(absl::StrReplaceAll(kYaml, {{"ROWS", absl::StrCat(rows_a)}}));
  stage.Register();
  plan::PlanSpec spec;
  spec.train_examples = std::uint64_t{1} << 20;
  spec.steps_per_closure = kUpdatesPerClosureMax;
  spec.shuffle = false;
  client::FillPlan(spec, stage.job.mutable_plan());
  const auto add = [&](const char* name, std::uint32_t index, std::uint64_t rows,
                       std::uint64_t begin, std::uint64_t end) {
    v1::ShardSpec& shard = *stage.job.mutable_plan()->add_shards();
    shard.set_shard(static_cast<std::uint32_t>(stage.job.plan().shards_size() - 1));
    v1::VariableSpec& variable = *shard.mutable_variable();
    variable.set_name(name);
    variable.set_index(index);
    variable.add_shape(rows);
    variable.set_dtype(v1::DTYPE_FLOAT32);
    variable.mutable_initializer()->set_type("zeros");
    variable.mutable_optimizer()->set_type("sgd");
    variable.mutable_optimizer()->set_learning_rate(1);
    shard.set_row_begin(begin);
    shard.set_row_end(end);
  };
  for (std::uint64_t s = 0; s < shards; ++s)
    add("a", 0, rows_a, rows_a * s / shards, rows_a * (s + 1) / shards);
  add("b", 1, 1, 0, 1);
  stage.Place();
}

sdk::Registry Functions() {
  sdk::Registry registry;
  // The function runs as many steps as its argument says. Each step pushes -1 to all elements of
  // `a`, and even steps also push to `b`. The result is the values that the last step has read.
  registry.Register(
      "count",
      [](const ClosureContext& closure) -> absl::StatusOr<Source<int>> {
        return Source<int>([i = 0, n = std::stoi(std::string(closure.arguments()))]() mutable
                           -> absl::StatusOr<std::optional<int>> {
          return i < n ? std::optional<int>(i++) : std::nullopt;
        });
      },
      [](StepContext& step, int& input) -> absl::Status {
        EG_ASSIGN_OR_RETURN(const sdk::Values a, step.Pull("a"));
        const std::string read = absl::StrCat(a.data[0], " ", a.data.back());
        const std::vector<float> one(a.data.size(), -1.0f);
        EG_RETURN_IF_ERROR(step.Push("a", one));
        if (input % 2 == 0)
          EG_RETURN_IF_ERROR(step.Push("b", std::span<const float>(one).first(1)));
        return step.SetResult(read);
      });
  registry.Register("nan", [](StepContext& step) {
    return step.Push("b", std::vector<float>{std::numeric_limits<float>::quiet_NaN()});
  });
  registry.Register("wrong",
                    [](StepContext&) { return UserError(absl::InvalidArgumentError("mine")); });
  registry.Register("away", [](StepContext&) { return absl::UnavailableError("a disk"); });
  return registry;
}

std::vector<std::uint64_t> Applied(Stage& stage) {
  std::vector<std::uint64_t> applied;
  for (const v1::ShardState& state : stage.States()) applied.push_back(state.updates_applied());
  return applied;
}

TEST_CASE(
    "each step of a function is one update, reads the values of the steps before it, and its "
    "result is in Done") {
  const sdk::Registry registry = Functions();
  Stage::Settings settings;
  settings.functions = &registry;
  Stage stage(settings);
  Begin(stage);
  v1::Hello hello;
  stage.OnControl([&] { stage.runner->FillHello(&hello); });
  CHECK(hello.functions_size() == 4);
  stage.Grant(0, v1::TRAIN, {}, "count", "5");
  const v1::Done first = stage.Next(v1::TaskMessage::kDone).done();
  CHECK(first.result() == "4 4");
  CHECK(first.metrics().steps() == 5);
  stage.Answer(first);
  // The next closure must read all of these updates. An update carries (closure, step). The
  // closure's number is its position in the order of the calls of schedule().
  stage.Grant(7, v1::TRAIN, {}, "count", "2");
  const v1::Done second = stage.Next(v1::TaskMessage::kDone).done();
  CHECK(second.result() == "6 6");
  stage.Answer(second);
  CHECK(Applied(stage) == std::vector<std::uint64_t>{7, 7, 4});
  for (const SeenPush& push : stage.Seen())
    CHECK((push.closure == 0 ? push.update < 5 : push.closure == 7 && push.update < 2));
  // If the argument is 0, the closure has no step and must end.
  stage.Grant(8, v1::TRAIN, {}, "count", "0");
  const v1::Done none = stage.Next(v1::TaskMessage::kDone).done();
  CHECK(none.metrics().steps() == 0);
  stage.Answer(none);
  CHECK(stage.HoldsNothing());
}

// Each of two servers has 800 kB of `a`. In the cases, the limits of the servers are announced to
// the worker, or they are higher than needed.
TEST_CASE(
    "a function whose values are larger than a server's budget pulls and pushes them in several "
    "requests, each update once") {
  const sdk::Registry registry = Functions();
  const auto calls = [&](std::uint64_t budget_bytes_max) {
    Stage::Settings settings;
    settings.functions = &registry;
    settings.budget_bytes_max = budget_bytes_max;
    Stage stage(settings);
    Begin(stage, 400'000, 16);
    stage.Grant(0, v1::TRAIN, {}, "count", "3");
    const v1::Done first = stage.Next(v1::TaskMessage::kDone).done();
    CHECK(first.result() == "2 2");
    stage.Answer(first);
    stage.Grant(1, v1::TRAIN, {}, "count", "1");
    const v1::Done second = stage.Next(v1::TaskMessage::kDone).done();
    CHECK(second.result() == "3 3");
    stage.Answer(second);
    std::vector<std::uint64_t> want(17, 4);
    want.back() = 3;  // `b`, which only even steps push to
    CHECK(Applied(stage) == want);
    for (const v1::ShardState& state : stage.States()) CHECK(state.duplicates_refused() == 0);
    for (const auto& node : stage.nodes) CHECK(node->stats().budget_refused == 0);
    CHECK(stage.client.stats().failures == 0);
    CHECK(stage.HoldsNothing());
    return stage.client.stats().calls;
  };
  CHECK(calls(300'000) > 2 * calls(256u << 20));
}

TEST_CASE(
    "a closure run again under a higher attempt changes nothing where it was applied, and a repair "
    "touches its targets only") {
  const sdk::Registry registry = Functions();
  Stage::Settings settings;
  settings.functions = &registry;
  Stage stage(settings);
  Begin(stage);
  for (int i = 0; i < 2; ++i) {
    stage.Grant(0, v1::TRAIN, {}, "count", "3");
    stage.Answer(stage.Next(v1::TaskMessage::kDone).done());
  }
  CHECK(Applied(stage) == std::vector<std::uint64_t>{3, 3, 2});
  const std::size_t before = stage.Seen().size();
  stage.Grant(0, v1::TRAIN, {1}, "count", "3");
  const v1::Done repair = stage.Next(v1::TaskMessage::kDone).done();
  CHECK_FALSE(repair.all_targets());
  const auto seen = stage.Seen();
  for (std::size_t i = before; i < seen.size(); ++i) CHECK(seen[i].shard == 1);
  CHECK(Applied(stage) == std::vector<std::uint64_t>{3, 3, 2});
}

TEST_CASE(
    "a function's error is final and names function, closure and step; a machine's error is not "
    "the user's; an unknown function goes to other workers") {
  const sdk::Registry registry = Functions();
  Stage::Settings settings;
  settings.functions = &registry;
  Stage stage(settings);
  Begin(stage);
  const auto failed = [&](const std::string& function) {
    stage.Grant(4, v1::TRAIN, {}, function, "1");
    return stage.Next(v1::TaskMessage::kFailed).failed();
  };
  CHECK(failed("wrong").user_error());
  CHECK_THAT(failed("wrong").cause().message(),
             Catch::Contains("mine function=wrong closure=4 step=0"));
  CHECK(failed("nan").user_error());
  CHECK_THAT(failed("nan").cause().message(), Catch::Contains("not finite"));
  CHECK_FALSE(failed("away").user_error());
  CHECK_FALSE(failed("unknown").user_error());
  CHECK_THAT(failed("unknown").cause().message(), Catch::Contains("unknown function"));
  CHECK(Applied(stage) == std::vector<std::uint64_t>{0, 0, 0});
  stage.Grant(5, v1::TRAIN, {}, "count", "1");
  CHECK(stage.Next(v1::TaskMessage::kDone).done().result() == "0 0");
}

TEST_CASE("a superseded closure stops after its step, and its function is told") {
  std::atomic<bool> stop{false};
  runtime::WaitableEvent begun;
  sdk::Registry registry = Functions();
  registry.Register("waits", [&](StepContext& step) {
    begun.Set();
    while (!step.cancelled()) {
      runtime::WaitableEvent never;
      never.WaitFor(std::chrono::milliseconds(1));
    }
    stop = true;
    return step.Push("b", std::vector<float>{1});
  });
  Stage::Settings settings;
  settings.functions = &registry;
  Stage stage(settings);
  Begin(stage);
  const std::uint64_t n = stage.Grant(2, v1::TRAIN, {}, "waits", "");
  begun.Wait();
  v1::Done answer;
  answer.set_job_uid(kJob);
  answer.set_closure(2);
  *answer.mutable_attempt() = client::ToProto(Attempt{1, n});
  stage.Answer(answer, true);
  stage.Grant(3, v1::TRAIN, {}, "count", "1");
  CHECK(stage.Next(v1::TaskMessage::kDone).done().closure() == 3);
  CHECK(stop);
  CHECK(Applied(stage) == std::vector<std::uint64_t>{1, 1, 1});  // only the updates of closure 3
}

}  // namespace
}  // namespace evergrad::worker

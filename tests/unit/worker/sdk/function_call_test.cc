// Tests one run of a user's function without a runner. The test acts as the compute thread, and it
// holds the variables.
#include <catch2/catch.hpp>

#include <atomic>
#include <stdexcept>

#include "common/base/ids.h"
#include "worker/sdk/function_call.h"

namespace evergrad::sdk {
namespace {

using Outcome = FunctionCall::Outcome;

class Stage {
 public:
  explicit Stage(Registry registry) : registry_(std::move(registry)) {}
  void Make(const std::string& function, const std::string& arguments = "",
            std::uint64_t closure = 3) {
    auto made = FunctionCall::Make(registry_, function, arguments, closure, 7, cancelled);
    REQUIRE(made.ok());
    call = *std::move(made);
  }
  absl::StatusOr<Outcome> Step() {
    gradients = {std::vector<float>(2, 0.0f), std::vector<float>(1, 0.0f)};
    return call->Step({{"w", {2, 1}, weights}, {"b", {}, bias}}, [this](std::uint32_t variable) {
      return std::span<float>(gradients[variable]);
    });
  }
  std::vector<float> weights{1, 2}, bias{5};
  std::vector<std::vector<float>> gradients;
  std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
  std::unique_ptr<FunctionCall> call;

 private:
  const Registry registry_;
};

Source<int> CountTo(int n) {
  return [i = 0, n]() mutable -> absl::StatusOr<std::optional<int>> {
    return i < n ? std::optional<int>(i++) : std::nullopt;
  };
}

TEST_CASE("a function without input makes one step that reads, pushes and returns a result") {
  Registry registry;
  registry.Register("f", [](StepContext& step) -> absl::Status {
    CHECK(step.function() == "f");
    CHECK(step.arguments() == "abc");
    CHECK(step.closure() == 3);
    CHECK(step.step() == 0);
    const auto w = step.Pull("w");
    REQUIRE(w.ok());
    CHECK(w->shape == std::vector<std::uint64_t>{2, 1});
    CHECK(w->data[1] == 2.0f);
    CHECK(step.Pull("c").status().code() == absl::StatusCode::kNotFound);
    CHECK(BlameOf(step.Pull("c").status()) == Blame::kUser);
    CHECK(step.Push("w", std::vector<float>{1, 1}).ok());
    CHECK(step.Push("w", std::vector<float>{0, 2}).ok());
    CHECK(step.Push("w", std::vector<float>{1}).code() == absl::StatusCode::kInvalidArgument);
    CHECK(step.SetResult(std::string((1u << 20) + 1, 'x')).code() ==
          absl::StatusCode::kInvalidArgument);
    step.CountExamples(4);
    return step.SetResult("done");
  });
  Stage stage(std::move(registry));
  stage.Make("f", "abc");
  const auto outcome = stage.Step();
  REQUIRE(outcome.ok());
  CHECK(outcome->stepped);
  CHECK(outcome->last);
  CHECK(outcome->pushed == std::vector<std::uint32_t>{0});
  CHECK(outcome->examples == 4);
  CHECK(stage.gradients[0] == std::vector<float>{1, 3});
  CHECK(stage.call->result() == "done");
}

TEST_CASE("each input makes one step, and the last step is marked") {
  Registry registry;
  std::vector<int> seen;
  registry.Register(
      "f",
      [](const ClosureContext& closure) -> absl::StatusOr<Source<int>> {
        return CountTo(static_cast<int>(closure.arguments().size()));
      },
      [&](StepContext& step, int& input) {
        CHECK(static_cast<int>(step.step()) == input);
        seen.push_back(input);
        return step.Push("b", std::vector<float>{1});
      });
  Stage stage(std::move(registry));
  for (const int n : {0, 1, 3}) {
    seen.clear();
    stage.Make("f", std::string(static_cast<std::size_t>(n), 'x'));
    for (int i = 0; i < std::max(n, 1); ++i) {
      const auto outcome = stage.Step();
      REQUIRE(outcome.ok());
      CHECK(outcome->stepped == (n > 0));
      CHECK(outcome->last == (i >= n - 1));
      if (n > 0) CHECK(outcome->pushed == std::vector<std::uint32_t>{1});
    }
    CHECK(seen.size() == static_cast<std::size_t>(n));
  }
}

TEST_CASE("inputs that cannot be copied are passed to the step") {
  Registry registry;
  registry.Register(
      "f",
      [](const ClosureContext&) -> absl::StatusOr<Source<std::unique_ptr<int>>> {
        return Source<std::unique_ptr<int>>(
            [i = 0]() mutable -> absl::StatusOr<std::optional<std::unique_ptr<int>>> {
              if (i == 2) return std::nullopt;
              return std::make_unique<int>(i++);
            });
      },
      [](StepContext& step, std::unique_ptr<int>& input) {
        CHECK(*input == static_cast<int>(step.step()));
        return absl::OkStatus();
      });
  Stage stage(std::move(registry));
  stage.Make("f");
  CHECK_FALSE(stage.Step()->last);
  CHECK(stage.Step()->last);
}

TEST_CASE("random numbers of a step depend only on the job's seed, the closure and the step") {
  std::vector<float> drawn;
  Registry registry;
  registry.Register(
      "f", [](const ClosureContext&) -> absl::StatusOr<Source<int>> { return CountTo(2); },
      [&](StepContext& step, int&) {
        drawn.push_back(step.Uniform(0));
        drawn.push_back(step.Normal(5));
        return absl::OkStatus();
      });
  Stage stage(std::move(registry));
  const auto run = [&](std::uint64_t closure) {
    drawn.clear();
    stage.Make("f", "", closure);
    while (!stage.Step()->last) {
    }
    return drawn;
  };
  const auto first = run(3);
  CHECK(run(3) == first);
  CHECK(run(4) != first);
  CHECK(first[0] != first[2]);
}

TEST_CASE("errors and exceptions of a user's code are distinguished, and stop at the border") {
  Registry bad;
  bad.Register("a b", [](StepContext&) { return absl::OkStatus(); });
  CHECK(bad.status().code() == absl::StatusCode::kInvalidArgument);
  Registry good;
  good.Register("throws",
                [](StepContext&) -> absl::Status { throw std::runtime_error("out of points"); });
  good.Register("odd", [](StepContext&) -> absl::Status { throw 5; });
  good.Register("user", [](StepContext&) { return UserError(absl::InvalidArgumentError("mine")); });
  good.Register("machine",
                [](StepContext&) -> absl::Status { return absl::UnavailableError("the disk"); });
  good.Register(
      "opens",
      [](const ClosureContext&) -> absl::StatusOr<Source<int>> {
        throw std::runtime_error("cannot open");
      },
      [](StepContext&, int&) { return absl::OkStatus(); });
  CHECK(good.status().ok());
  CHECK(good.names().size() == 5);
  good.Register("user", [](StepContext&) { return absl::OkStatus(); });
  CHECK_THAT(std::string(good.status().message()), Catch::Contains("duplicate function"));
  Stage stage(std::move(good));
  const auto status = [&](const std::string& function) {
    stage.Make(function);
    return stage.Step().status();
  };
  CHECK_THAT(std::string(status("throws").message()), Catch::Contains("exception: out of points"));
  CHECK(BlameOf(status("throws")) == Blame::kUser);
  CHECK(BlameOf(status("odd")) == Blame::kUser);
  CHECK(BlameOf(status("user")) == Blame::kUser);
  CHECK(status("machine").code() == absl::StatusCode::kUnavailable);
  CHECK(BlameOf(status("machine")) == Blame::kMachine);
  CHECK_THAT(std::string(status("opens").message()), Catch::Contains("cannot open"));
  CHECK(FunctionCall::Make(Registry(), "none", "", 0, 0, stage.cancelled).status().code() ==
        absl::StatusCode::kNotFound);
}

TEST_CASE("a closure has a limited number of steps, and is told about its cancellation") {
  Registry registry;
  bool cancelled = false;
  registry.Register(
      "f", [](const ClosureContext&) -> absl::StatusOr<Source<int>> { return CountTo(1 << 20); },
      [&](StepContext& step, int&) {
        cancelled = step.cancelled();
        return absl::OkStatus();
      });
  Stage stage(std::move(registry));
  stage.Make("f");
  for (std::uint32_t u = 0; u < kUpdatesPerClosureMax; ++u) REQUIRE(stage.Step().ok());
  CHECK_FALSE(cancelled);
  CHECK(stage.Step().status().code() == absl::StatusCode::kResourceExhausted);
  stage.Make("f");
  stage.cancelled->store(true);
  CHECK(stage.Step().ok());
  CHECK(cancelled);
}

}  // namespace
}  // namespace evergrad::sdk

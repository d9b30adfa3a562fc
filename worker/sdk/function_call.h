// One run of a user's function: its source, its steps, what they push and what comes of it. The
// border where what a user's code does becomes a Status. Used from one thread at a time, but for
// the flag.
#pragma once

#include <any>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/sdk/sdk.h"

namespace evergrad::sdk {

class FunctionCall {
 public:
  struct Variable {
    std::string name;
    std::vector<std::uint64_t> shape;
    std::span<const float> values;
  };
  struct Outcome {
    bool stepped = false;               // a step was made; else there was no input at all
    bool last = false;                  // and no other follows
    std::vector<std::uint32_t> pushed;  // variables, rising
    std::uint64_t examples = 0;
  };
  // Memory for the gradient of a variable, zeroed at first.
  using Gradient = std::function<std::span<float>(std::uint32_t variable)>;

  // NotFound: no function of this name. `registry` outlives the call; `cancelled` is shared with
  // who may give it up.
  static absl::StatusOr<std::unique_ptr<FunctionCall>> Make(
      const Registry& registry, const std::string& function, std::string arguments,
      std::uint64_t closure, std::uint64_t seed, std::shared_ptr<std::atomic<bool>> cancelled);

  // The next step: opens the source before the first, and reads ahead by one input, so that the
  // last step is known as such.
  absl::StatusOr<Outcome> Step(const std::vector<Variable>& variables, const Gradient& gradient);
  const std::string& result() const { return result_; }

 private:
  friend class StepContext;
  FunctionCall() = default;
  absl::StatusOr<Outcome> StepOrThrow(const Gradient& gradient);
  absl::StatusOr<std::uint32_t> Find(absl::string_view variable) const;

  Registry::Function function_;  // a copy: what a user's lambda keeps between steps is of this call
  ClosureContext context_;
  std::uint64_t seed_ = 0;
  std::uint32_t step_ = 0;
  Registry::AnySource source_;
  std::any input_;
  bool opened_ = false;
  std::string result_;
  // Of the step being made.
  const std::vector<Variable>* variables_ = nullptr;
  const Gradient* gradient_ = nullptr;
  std::vector<std::uint32_t> pushed_;
};

}  // namespace evergrad::sdk

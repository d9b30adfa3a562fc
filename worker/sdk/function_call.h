// One run of a user's function, with its source, its steps, their pushes and its result. The class
// converts exceptions of user code to a Status. Used on one thread at a time, except the cancel
// flag.
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
    bool stepped = false;               // false if there was no input
    bool last = false;                  // no other step follows
    std::vector<std::uint32_t> pushed;  // pushed variables, in rising order
    std::uint64_t examples = 0;
  };
  // Returns memory for the gradient of a variable, initially zero.
  using Gradient = std::function<std::span<float>(std::uint32_t variable)>;

  // Returns NotFound for an unknown function. `registry` outlives the call. Code that may cancel
  // the call shares `cancelled` with the call.
  static absl::StatusOr<std::unique_ptr<FunctionCall>> Make(
      const Registry& registry, const std::string& function, std::string arguments,
      std::uint64_t closure, std::uint64_t seed, std::shared_ptr<std::atomic<bool>> cancelled);

  // Runs the next step. The first call opens the source. Each call reads one further input in
  // advance, to find out whether the present step is the last one.
  absl::StatusOr<Outcome> Step(const std::vector<Variable>& variables, const Gradient& gradient);
  const std::string& result() const { return result_; }

 private:
  friend class StepContext;
  FunctionCall() = default;
  absl::StatusOr<Outcome> StepOrThrow(const Gradient& gradient);
  absl::StatusOr<std::uint32_t> Find(absl::string_view variable) const;

  Registry::Function function_;  // a copy, so that state in the user's lambda belongs to this call
  ClosureContext context_;
  std::uint64_t seed_ = 0;
  std::uint32_t step_ = 0;
  Registry::AnySource source_;
  std::any input_;
  bool opened_ = false;
  std::string result_;
  // The following pointers are valid during a step.
  const std::vector<Variable>* variables_ = nullptr;
  const Gradient* gradient_ = nullptr;
  std::vector<std::uint32_t> pushed_;
};

}  // namespace evergrad::sdk

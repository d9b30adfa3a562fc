// The building blocks of a user's worker: functions for closures, and a main (docs/closures.md).
//
//   #include "worker/sdk/sdk.h"
//
//   int main(int argc, char** argv) {
//     evergrad::sdk::Registry functions;
//     functions.Register("fit", OpenPoints, FitStep);     // an input function and a step function
//     functions.Register("read", ReadStep);               // one step, without input
//     return evergrad::sdk::WorkerMain(argc, argv, std::move(functions));
//   }
//
// The program links the CMake target evergrad::sdk. It is a complete worker with every option of
// evergrad-worker.
//
// A closure may run again from its first step, on another worker, because its worker died or a
// server lost its updates. Therefore its pushes must be a function of its arguments, of closure()
// and step(), and of the random numbers of its context. The values returned by Pull may differ. In
// every case exactly one gradient of each step reaches each shard.
//
// A Status marked by UserError() and an exception are user errors: the closure has failed, and the
// client's next call returns the error. Any other Status is a machine error, for example a file
// that is temporarily unreadable. The closure is then retried, here or on another worker, ten times
// with growing pauses.
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"

namespace evergrad::sdk {

class FunctionCall;

// The values of one variable in this step, valid until the step function returns.
struct Values {
  std::span<const float> data;  // row-major
  std::vector<std::uint64_t> shape;
};

// The context of an input function.
class ClosureContext {
 public:
  absl::string_view function() const { return function_; }
  absl::string_view arguments() const { return arguments_; }  // the arguments as given to Schedule
  std::uint64_t closure() const {
    return closure_;
  }  // number of the closure; numbers rise in the order of Schedule, with gaps
  // Uniform, Normal and Bits return random numbers that are the same in every run of the closure.
  // The numbers depend on the job's seed and the closure, and within a step also on the step's
  // number. `index` is the position in an infinite sequence.
  float Uniform(std::uint64_t index) const;  // in [0, 1)
  float Normal(std::uint64_t index) const;
  std::uint64_t Bits(std::uint64_t index) const;
  // Returns whether the closure was cancelled, or its worker has stopped working on it. In both
  // cases the result is discarded. Thread-safe.
  bool cancelled() const;

 protected:
  friend class FunctionCall;
  ClosureContext() = default;
  std::string function_, arguments_;
  std::uint64_t closure_ = 0, key_ = 0;
  std::shared_ptr<const void> cancelled_;  // std::atomic<bool>, shared with the worker
};

// The context of a step function. The context is used on the worker's compute thread, and is valid
// until the function returns.
class StepContext : public ClosureContext {
 public:
  std::uint32_t step() const { return step_; }  // from 0; a closure has at most 4096 steps
  // Returns the values at the beginning of this step. They include all pushes of the earlier steps
  // of this closure. All variables are read together before the step; unchanged values are not sent
  // again. Returns NotFound (a user error) for an unknown variable.
  absl::StatusOr<Values> Pull(absl::string_view variable) const;
  // Pushes a gradient of the variable's shape for the variable's optimizer. The gradient is sent if
  // the step function returns OK. A second push of a variable in one step is added to the first.
  // Returns InvalidArgument or NotFound (user errors) for a wrong size or an unknown variable.
  absl::Status Push(absl::string_view variable, std::span<const float> gradient);
  // Sets the closure's result, or replaces an earlier one. Returns InvalidArgument (a user error)
  // above 1 MiB.
  absl::Status SetResult(absl::string_view bytes);
  // Adds to the number of processed examples, from which the job's examples/s are computed.
  void CountExamples(std::uint64_t examples) { examples_ += examples; }

 private:
  friend class FunctionCall;
  StepContext() = default;
  std::uint32_t step_ = 0;
  std::uint64_t examples_ = 0;
  FunctionCall* call_ = nullptr;
};

// Returns the inputs of a closure's steps, one after another, and nullopt after the last. The
// source outlives the context: it must copy the data that it needs from the context.
template <class Input>
using Source = std::function<absl::StatusOr<std::optional<Input>>()>;

class Registry {
 public:
  using Step = std::function<absl::Status(StepContext&)>;

  // Registers a closure of one step. status() and WorkerMain report mistakes (a duplicate name, an
  // invalid name, too many functions).
  void Register(const std::string& name, Step step);
  // `open`, (const ClosureContext&) -> absl::StatusOr<Source<Input>>, is called once per run.
  // `step`, (StepContext&, Input&) -> absl::Status, is called once per input.
  template <class Open, class StepOfInput>
  void Register(const std::string& name, Open open, StepOfInput step) {
    using SourceOf = typename std::invoke_result_t<Open&, const ClosureContext&>::value_type;
    using Input = typename std::invoke_result_t<SourceOf&>::value_type::value_type;
    Function function;
    function.open = [open = std::move(open)](
                        const ClosureContext& context) mutable -> absl::StatusOr<AnySource> {
      absl::StatusOr<SourceOf> source = open(context);
      if (!source.ok()) return source.status();
      // The source is shared, because a std::function must be copyable and the source need not be.
      const auto shared = std::make_shared<SourceOf>(*std::move(source));
      return AnySource([shared]() -> absl::StatusOr<std::any> {
        auto input = (*shared)();
        if (!input.ok()) return input.status();
        if (!input->has_value()) return std::any();
        return std::any(std::make_shared<Input>(*std::move(*input)));
      });
    };
    function.step = [step = std::move(step)](StepContext& context,
                                             const std::any& input) mutable -> absl::Status {
      return step(context, **std::any_cast<std::shared_ptr<Input>>(&input));
    };
    Add(name, std::move(function));
  }

  std::vector<std::string> names() const;
  const absl::Status& status() const { return status_; }

 private:
  friend class FunctionCall;
  // Returns the next input, or an empty std::any if there are no more inputs.
  using AnySource = std::function<absl::StatusOr<std::any>()>;
  struct Function {
    std::function<absl::StatusOr<AnySource>(const ClosureContext&)> open;
    std::function<absl::Status(StepContext&, const std::any&)> step;
  };
  void Add(const std::string& name, Function function);
  std::map<std::string, Function> functions_;
  absl::Status status_;
};

// Runs the main function of evergrad-worker with these functions: parses the options, joins the
// coordinator, and works until SIGTERM. Returns the exit code.
int WorkerMain(int argc, char** argv, Registry functions);

}  // namespace evergrad::sdk

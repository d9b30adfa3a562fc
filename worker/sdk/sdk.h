// What a user's worker is made of: functions that closures run, and a main (docs/closures.md).
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
// Link evergrad::sdk. The program is a whole worker, with every option of evergrad-worker.
//
// A closure may be run again, on another worker, from its first step: after a death, and when a
// server lost what it had applied. So what it pushes must be a function of its arguments, of
// closure() and step(), and of what it draws through its context; what it reads through Pull may
// differ. Exactly one gradient of each step reaches each shard, whatever happens.
//
// Errors: a Status marked by UserError() and an exception are the user's: the closure has failed,
// and the client's next call is told. Any other Status is the machine's (a file that cannot be read
// just now): the closure is tried again, here or elsewhere, ten times with growing pauses.
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

// One variable's values as this step reads them; valid until the step function returns.
struct Values {
  std::span<const float> data;  // row-major
  std::vector<std::uint64_t> shape;
};

// What the input function sees.
class ClosureContext {
 public:
  absl::string_view function() const { return function_; }
  absl::string_view arguments() const { return arguments_; }  // as given to Schedule
  std::uint64_t closure() const {
    return closure_;
  }  // its number: rises in the order of Schedule, with gaps
  // Random by (job's seed, closure), in a step by (job's seed, closure, step): the same each time
  // the closure is run. Element `index` of a sequence without end.
  float Uniform(std::uint64_t index) const;  // in [0, 1)
  float Normal(std::uint64_t index) const;
  std::uint64_t Bits(std::uint64_t index) const;
  // The closure was cancelled, or its worker gives it up: whatever is returned now is thrown away.
  // Thread-safe.
  bool cancelled() const;

 protected:
  friend class FunctionCall;
  ClosureContext() = default;
  std::string function_, arguments_;
  std::uint64_t closure_ = 0, key_ = 0;
  std::shared_ptr<const void> cancelled_;  // std::atomic<bool>, shared with the worker
};

// What a step function sees. On the compute thread of its worker; valid until it returns.
class StepContext : public ClosureContext {
 public:
  std::uint32_t step() const { return step_; }  // from 0; at most 4096 in a closure
  // As of the beginning of this step, one's own earlier pushes included. All variables are read
  // together before the step; what has not changed does not travel. NotFound (the user's): no such
  // variable.
  absl::StatusOr<Values> Pull(absl::string_view variable) const;
  // A gradient for the variable's optimizer, of its shape; sent when the step function has returned
  // OK. A second push of a variable in one step is added. InvalidArgument, NotFound (the user's):
  // another size, no such variable.
  absl::Status Push(absl::string_view variable, std::span<const float> gradient);
  // The closure's result, at most 1 MiB; a later one replaces it. InvalidArgument (the user's):
  // larger.
  absl::Status SetResult(absl::string_view bytes);
  void CountExamples(std::uint64_t examples) {
    examples_ += examples;
  }  // for examples/s of the job

 private:
  friend class FunctionCall;
  StepContext() = default;
  std::uint32_t step_ = 0;
  std::uint64_t examples_ = 0;
  FunctionCall* call_ = nullptr;
};

// Makes the inputs of a closure's steps, one after another; nullopt: no more. Its context is gone
// by then: what it needs of it, it copies.
template <class Input>
using Source = std::function<absl::StatusOr<std::optional<Input>>()>;

class Registry {
 public:
  using Step = std::function<absl::Status(StepContext&)>;

  // A closure of one step. Mistakes (a name twice, a bad name, too many) are told by status(), and
  // by WorkerMain.
  void Register(const std::string& name, Step step);
  // `open`: (const ClosureContext&) -> absl::StatusOr<Source<Input>>, once a run. `step`:
  // (StepContext&, Input&) -> absl::Status, once for each input.
  template <class Open, class StepOfInput>
  void Register(const std::string& name, Open open, StepOfInput step) {
    using SourceOf = typename std::invoke_result_t<Open&, const ClosureContext&>::value_type;
    using Input = typename std::invoke_result_t<SourceOf&>::value_type::value_type;
    Function function;
    function.open = [open = std::move(open)](
                        const ClosureContext& context) mutable -> absl::StatusOr<AnySource> {
      absl::StatusOr<SourceOf> source = open(context);
      if (!source.ok()) return source.status();
      const auto shared = std::make_shared<SourceOf>(
          *std::move(source));  // a std::function is copied; the source need not be
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
  using AnySource = std::function<absl::StatusOr<std::any>()>;  // an empty one: no more
  struct Function {
    std::function<absl::StatusOr<AnySource>(const ClosureContext&)> open;
    std::function<absl::Status(StepContext&, const std::any&)> step;
  };
  void Add(const std::string& name, Function function);
  std::map<std::string, Function> functions_;
  absl::Status status_;
};

// evergrad-worker with these functions: parses its options, joins the coordinator, works until
// SIGTERM. Returns the exit code. From main.
int WorkerMain(int argc, char** argv, Registry functions);

}  // namespace evergrad::sdk

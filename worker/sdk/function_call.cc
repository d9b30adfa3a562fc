#include "worker/sdk/function_call.h"

#include <algorithm>
#include <exception>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/base/text.h"
#include "common/client/protocol.h"
#include "common/random/philox.h"

namespace evergrad::sdk {

absl::StatusOr<std::unique_ptr<FunctionCall>> FunctionCall::Make(
    const Registry& registry, const std::string& function, std::string arguments,
    std::uint64_t closure, std::uint64_t seed, std::shared_ptr<std::atomic<bool>> cancelled) {
  const auto found = registry.functions_.find(function);
  if (found == registry.functions_.end())
    return absl::NotFoundError(
        absl::StrCat("unknown function: function=", CleanText(function, 200)));
  std::unique_ptr<FunctionCall> call(new FunctionCall());
  call->function_ = found->second;
  call->seed_ = seed;
  ClosureContext& context = call->context_;
  context.function_ = function;
  context.arguments_ = std::move(arguments);
  context.closure_ = closure;
  context.key_ = random::KeyOf(seed, absl::StrCat("closure/", closure));
  context.cancelled_ = std::move(cancelled);
  return call;
}

absl::StatusOr<FunctionCall::Outcome> FunctionCall::Step(const std::vector<Variable>& variables,
                                                         const Gradient& gradient) {
  variables_ = &variables;
  absl::StatusOr<Outcome> outcome = absl::UnknownError("");
  try {
    outcome = StepOrThrow(gradient);
  } catch (const std::exception& e) {
    outcome = UserError(absl::UnknownError(absl::StrCat("exception: ", CleanText(e.what(), 1000))));
  } catch (...) {
    outcome = UserError(
        absl::UnknownError("the function threw an exception that is not a std::exception"));
  }
  variables_ = nullptr;
  gradient_ = nullptr;
  return outcome;
}

absl::StatusOr<FunctionCall::Outcome> FunctionCall::StepOrThrow(const Gradient& gradient) {
  Outcome outcome;
  if (!opened_) {
    opened_ = true;
    if (function_.open) {
      EG_ASSIGN_OR_RETURN(source_, function_.open(context_));
      EG_ASSIGN_OR_RETURN(input_, source_());
      if (!input_.has_value()) {
        outcome.last = true;
        return outcome;
      }
    }
  }
  if (step_ >= kUpdatesPerClosureMax)
    return UserError(absl::ResourceExhaustedError(
        absl::StrCat("a closure has too many steps: max=", kUpdatesPerClosureMax)));
  StepContext step;
  static_cast<ClosureContext&>(step) = context_;
  step.key_ = random::KeyOf(seed_, absl::StrCat("closure/", context_.closure_, "/", step_));
  step.step_ = step_;
  step.call_ = this;
  gradient_ = &gradient;
  pushed_.clear();
  EG_RETURN_IF_ERROR(function_.step(step, input_));
  gradient_ = nullptr;
  ++step_;
  outcome.stepped = true;
  outcome.examples = step.examples_;
  std::sort(pushed_.begin(), pushed_.end());
  outcome.pushed = std::move(pushed_);
  outcome.last = true;
  if (source_) {
    EG_ASSIGN_OR_RETURN(input_, source_());
    outcome.last = !input_.has_value();
  }
  return outcome;
}

absl::StatusOr<std::uint32_t> FunctionCall::Find(absl::string_view variable) const {
  std::string names;
  for (std::uint32_t i = 0; i < variables_->size(); ++i) {
    if ((*variables_)[i].name == variable) return i;
    if (i < 16) absl::StrAppend(&names, i == 0 ? "" : ", ", (*variables_)[i].name);
  }
  return UserError(absl::NotFoundError(
      absl::StrCat("unknown variable: variable=", CleanText(variable, 200), " have=", names)));
}

absl::StatusOr<Values> StepContext::Pull(absl::string_view variable) const {
  EG_ASSIGN_OR_RETURN(const std::uint32_t index, call_->Find(variable));
  const FunctionCall::Variable& found = (*call_->variables_)[index];
  return Values{found.values, found.shape};
}

absl::Status StepContext::Push(absl::string_view variable, std::span<const float> gradient) {
  EG_ASSIGN_OR_RETURN(const std::uint32_t index, call_->Find(variable));
  const FunctionCall::Variable& found = (*call_->variables_)[index];
  if (gradient.size() != found.values.size()) {
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("gradient size differs from its variable: variable=", found.name,
                     " want=", found.values.size(), " got=", gradient.size())));
  }
  const std::span<float> to = (*call_->gradient_)(index);
  for (std::size_t i = 0; i < gradient.size(); ++i) to[i] += gradient[i];
  if (std::find(call_->pushed_.begin(), call_->pushed_.end(), index) == call_->pushed_.end())
    call_->pushed_.push_back(index);
  return absl::OkStatus();
}

absl::Status StepContext::SetResult(absl::string_view bytes) {
  if (bytes.size() > client::kResultBytesMax)
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("the result of a closure is too large: bytes=", bytes.size(),
                     " max=", client::kResultBytesMax)));
  call_->result_ = std::string(bytes);
  return absl::OkStatus();
}

}  // namespace evergrad::sdk

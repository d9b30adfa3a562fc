// The services of a job for its part that holds the closures of clients (function_closures.h).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/describe.h"
#include "common/client/protocol.h"
#include "common/client/wire_type.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/job_error.h"

namespace evergrad::coordinator {
namespace {

// Keras' compute_fans.
std::pair<std::uint64_t, std::uint64_t> Fans(const std::vector<std::uint64_t>& shape) {
  if (shape.empty()) return {1, 1};
  if (shape.size() == 1) return {shape[0], shape[0]};
  std::uint64_t field = 1;
  for (std::size_t i = 0; i + 2 < shape.size(); ++i) field *= shape[i];
  return {field * shape[shape.size() - 2], field * shape.back()};
}

}  // namespace

v1::DescribeResult Job::DescribeFunctions() const {
  v1::DescribeResult result;
  std::uint64_t parameters = 0;
  std::string summary = "variable  shape  initializer  optimizer\n";
  for (const config::FunctionVariable& variable : id_.spec.functions.variables) {
    const optimizers::Settings& optimizer =
        variable.optimizer ? *variable.optimizer : id_.spec.optimizer;
    v1::VariableSpec& spec = *result.add_variables();
    spec.set_index(static_cast<std::uint32_t>(result.variables_size() - 1));
    spec.set_name(variable.name);
    std::uint64_t elements = 1;
    std::string shape;
    for (const std::uint64_t d : variable.shape) {
      spec.add_shape(d);
      elements *= d;
      absl::StrAppend(&shape, shape.empty() ? "" : ",", d);
    }
    parameters += elements;
    spec.set_dtype(v1::DTYPE_FLOAT32);
    client::FillWireType(id_.spec, variable.name, &spec);
    const auto [fan_in, fan_out] = Fans(variable.shape);
    client::FillInitializer(variable.initializer, fan_in, fan_out, id_.spec.training.seed,
                            spec.mutable_initializer());
    client::FillOptimizer(optimizer, spec.mutable_optimizer());
    absl::StrAppend(&summary, variable.name, "  [", shape, "]  ", variable.initializer.type, "  ",
                    optimizer.type, "\n");
  }
  result.set_parameters(parameters);
  result.set_model_summary(summary);
  return result;
}

void Job::FillCall(std::uint64_t closure, v1::Grant* grant) const {
  const FunctionQueue::ScheduledClosure* entry = functions_->queue().Find(closure);
  if (entry == nullptr) return;
  grant->set_function(entry->function);
  grant->set_arguments(entry->arguments);
}

void Job::RevokeCancelled(ClosureId closure, const ClosureBook::Current& current) {
  failures_.erase(closure.value());
  poison_.OnEnded(closure);
  Worker* worker = FindWorker(current.worker);
  if (worker == nullptr) return;
  if (worker->Drop(current.attempt)) worker->advanced_at = host_->Now();
  SendSuperseded(worker->task, closure, current.attempt);
}

absl::StatusOr<FunctionCalls*> Job::function_calls() {
  if (calls_) return calls_.get();
  return UserError(absl::FailedPreconditionError(
      absl::StrCat("closures can be scheduled only in jobs of spec.type functions: job=", name(),
                   " type=", id_.spec.type)));
}

absl::Status Job::CallsRefusal() const {
  if (!ended() && phase_ < Phase::kSealing) return absl::OkStatus();
  if (first_cause_) {
    const absl::Status cause = client::FromErrorDetail(*first_cause_);
    const absl::Status text(cause.code(), absl::StrCat("the job has failed: job=", name(),
                                                       " cause=", ErrorText(*first_cause_)));
    return cause_is_users_ ? UserError(text) : WithRetryable(text, false);
  }
  const JobState end = ended() ? state_ : ending_;
  if (end == JobState::kCancelled)
    return UserError(absl::CancelledError(absl::StrCat("the job was cancelled: job=", name())));
  return UserError(absl::FailedPreconditionError(
      absl::StrCat("the job has ended: job=", name(), " state=", JobStateName(end))));
}

std::string Job::WaitingForFunction() const {
  std::set<std::string> there;
  for (const auto& [task, worker] : workers_) {
    if (Usable(worker)) there.insert(worker.functions.begin(), worker.functions.end());
  }
  return functions_->WaitingFor(there);
}

}  // namespace evergrad::coordinator

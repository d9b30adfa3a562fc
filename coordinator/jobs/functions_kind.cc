#include "coordinator/jobs/functions_kind.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/client/describe.h"
#include "common/client/wire_type.h"
#include "coordinator/jobs/scheduled_closures.h"

namespace evergrad::coordinator {
namespace {

// Returns the fan-in and the fan-out of a shape, like compute_fans of Keras.
std::pair<std::uint64_t, std::uint64_t> Fans(const std::vector<std::uint64_t>& shape) {
  if (shape.empty()) return {1, 1};
  if (shape.size() == 1) return {shape[0], shape[0]};
  std::uint64_t field = 1;
  for (std::size_t i = 0; i + 2 < shape.size(); ++i) field *= shape[i];
  return {field * shape[shape.size() - 2], field * shape.back()};
}

}  // namespace

std::optional<v1::DescribeResult> FunctionsKind::Describe(const config::JobSpec& job) const {
  v1::DescribeResult result;
  std::uint64_t parameters = 0;
  std::string summary = "variable  shape  initializer  optimizer\n";
  for (const config::FunctionVariable& variable : job.functions.variables) {
    const optimizers::Settings& optimizer =
        variable.optimizer ? *variable.optimizer : job.optimizer;
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
    client::FillWireType(job, variable.name, &spec);
    const auto [fan_in, fan_out] = Fans(variable.shape);
    client::FillInitializer(variable.initializer, fan_in, fan_out, job.training.seed,
                            spec.mutable_initializer());
    client::FillOptimizer(optimizer, spec.mutable_optimizer());
    absl::StrAppend(&summary, variable.name, "  [", shape, "]  ", variable.initializer.type, "  ",
                    optimizer.type, "\n");
  }
  result.set_parameters(parameters);
  result.set_model_summary(summary);
  return result;
}

// Plans kClosuresMax closures of kUpdatesPerClosureMax steps each, which is enough for every
// schedule(). The global_step is closure * kUpdatesPerClosureMax + update.
plan::PlanSpec FunctionsKind::PlanNumbers(const config::JobSpec& spec,
                                          const v1::DescribeResult&) const {
  plan::PlanSpec numbers;
  numbers.train_examples = kClosuresMax * kUpdatesPerClosureMax;
  numbers.batch_size = numbers.eval_batch_size = numbers.epochs = 1;
  numbers.steps_per_closure = numbers.eval_steps_per_closure = kUpdatesPerClosureMax;
  numbers.shuffle = false;
  numbers.shuffle_seed = spec.data.shuffle_seed;
  numbers.eval_examples = 0;
  return numbers;
}

std::unique_ptr<ClosureSource> FunctionsKind::MakeSource(const JobPart& part,
                                                         const ClosureSourceParts& parts) const {
  return std::make_unique<ScheduledClosures>(part, parts);
}

}  // namespace evergrad::coordinator

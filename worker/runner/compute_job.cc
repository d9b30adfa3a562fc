#include "worker/runner/compute_job.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/describe.h"
#include "worker/runner/counting.h"
#include "worker/runner/export_files.h"

namespace evergrad::worker {
namespace {

// (28, 28) and (28, 28, 1) name the same pixels in the same order, and a flat input takes any shape.
bool ShapesFit(const tensor::Shape& input, const tensor::Shape& example) {
  if (input.elements() != example.elements()) return false;
  if (input.rank() == 1) return true;
  const auto trimmed = [](const tensor::Shape& shape) {
    std::vector<std::uint64_t> dims = shape.dims();
    while (!dims.empty() && dims.back() == 1) dims.pop_back();
    return dims;
  };
  return trimmed(input) == trimmed(example);
}

}  // namespace

absl::StatusOr<Backend*> ComputeBackend::Get() {
  if (backend_ == nullptr) {
    EG_ASSIGN_OR_RETURN(backend_, MakeBackend(options_));
  }
  return backend_.get();
}

ComputeJob::ComputeJob(std::shared_ptr<const config::JobSpec> spec, std::uint64_t seed, std::shared_ptr<ComputeBackend> backend,
                       std::uint64_t data_bytes_max, metrics::Limit* data_limit)
    : spec_(std::move(spec)), seed_(seed), backend_(std::move(backend)), data_bytes_max_(data_bytes_max), data_limit_(data_limit) {}

absl::StatusOr<std::shared_ptr<const Dataset>> ComputeJob::OpenSource(const config::IdxSource& source) const {
  absl::StatusOr<std::unique_ptr<Dataset>> opened = OpenIdx(source, spec_->data.fields, data_bytes_max_);
  if (!opened.ok()) {
    if (absl::IsResourceExhausted(opened.status())) data_limit_->refused.Add();
    return opened.status();
  }
  std::unique_ptr<Dataset> data = *std::move(opened);
  data_limit_->current.Set(std::max(data_limit_->current.value(), static_cast<double>(data->examples() * data->example_shape().elements())));
  for (const config::InputSpec& input : spec_->model.inputs) {
    if (input.name != "image")
      return UserError(absl::InvalidArgumentError(absl::StrCat("model input that an idx source does not have: want=image got=", input.name)));
    const tensor::Shape want{std::vector<std::uint64_t>(input.shape)};
    if (!ShapesFit(want, data->example_shape())) {
      return UserError(absl::InvalidArgumentError(absl::StrCat("input shape mismatch: input=", input.name, " model=", want.ToString(),
                                                               " data=", data->example_shape().ToString(), " file=", source.images)));
    }
  }
  return std::shared_ptr<const Dataset>(std::move(data));
}

absl::Status ComputeJob::Open(const Needs& needs) {
  if (spec_->type != "training") return absl::OkStatus();
  if (needs.graph && graph_ == nullptr) {  // the model first: its mistakes cost no reading
    EG_ASSIGN_OR_RETURN(Backend* const backend, backend_->Get());
    EG_ASSIGN_OR_RETURN(graph_, Graph::Build(spec_->model, backend));
    if (graph_->label_elements() != 1) {
      const std::uint64_t got = graph_->label_elements();
      graph_.reset();
      return UserError(absl::InvalidArgumentError(absl::StrCat("an idx source has one label per example, the loss wants more: want=1 got=", got)));
    }
  }
  if (needs.train && train_ == nullptr) {
    if (!spec_->data.train) return UserError(absl::InvalidArgumentError("no training data: spec.data.train is missing"));
    EG_ASSIGN_OR_RETURN(train_, OpenSource(*spec_->data.train));
  }
  if (needs.eval && eval_ == nullptr && spec_->data.eval) {
    EG_ASSIGN_OR_RETURN(eval_, OpenSource(*spec_->data.eval));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::DescribeResult> ComputeJob::Describe() const {
  if (spec_->type == "counting") return DescribeCounting(*spec_, seed_);
  if (spec_->type == "functions") return absl::InternalError("a functions job is not described by a worker");
  v1::DescribeResult result;
  result.set_train_examples(train_->examples());
  result.set_data_fingerprint(train_->Fingerprint());  // evaluation is no part of the plan
  if (eval_ != nullptr) result.set_eval_examples(eval_->examples());
  std::uint64_t parameters = 0;
  for (const Variable& variable : graph_->variables()) {
    v1::VariableSpec& spec = *result.add_variables();
    spec.set_index(static_cast<std::uint32_t>(result.variables_size() - 1));
    spec.set_name(variable.name);
    for (const std::uint64_t d : variable.shape.dims()) spec.add_shape(d);
    spec.set_dtype(v1::DTYPE_FLOAT32);
    client::FillInitializer(variable.initializer, variable.initial_value, variable.fan_in, variable.fan_out, seed_, spec.mutable_initializer());
    client::FillOptimizer(spec_->optimizer, spec.mutable_optimizer());
    parameters += variable.shape.elements();
  }
  result.set_parameters(parameters);
  result.set_model_summary(graph_->Summary());
  return result;
}

absl::Status ComputeJob::UseLayout(std::shared_ptr<const Layout> layout) {
  if (layout_ == layout) return absl::OkStatus();
  if (graph_ != nullptr) {
    const auto& have = layout->variables();
    const auto& want = graph_->variables();
    for (std::size_t i = 0; i < std::max(have.size(), want.size()); ++i) {
      if (i < have.size() && i < want.size() && have[i].name == want[i].name && have[i].shape == want[i].shape) continue;
      return absl::InternalError(absl::StrCat("the plan's variables are not the model's: position=", i,
                                              " model=", i < want.size() ? want[i].name + want[i].shape.ToString() : "-",
                                              " plan=", i < have.size() ? have[i].name + have[i].shape.ToString() : "-"));
    }
  }
  layout_ = std::move(layout);
  weights_.emplace(layout_);
  return absl::OkStatus();
}

void ComputeJob::Absorb(std::vector<PulledShard> pulled) { weights_->Absorb(std::move(pulled)); }

absl::StatusOr<std::vector<std::span<const float>>> ComputeJob::Weights() const {
  if (!weights_ || !weights_->complete()) return absl::InternalError("a step without all of its weights");
  return weights_->Spans();
}

absl::StatusOr<ComputeJob::Step> ComputeJob::Train(const ReadyBatch& batch, std::uint64_t dropout_key) {
  EG_ASSIGN_OR_RETURN(const auto weights, Weights());
  Step step;
  if (spec_->type == "counting") {
    step.gradients = CountingGradient(layout_, batch.examples);
    return step;
  }
  step.gradients = std::make_shared<GradientBuffer>(layout_);
  const Batch inputs{batch.size, std::vector<std::span<const float>>(spec_->model.inputs.size(), batch.images.floats()), batch.labels.floats()};
  EG_ASSIGN_OR_RETURN(step.result, graph_->TrainStep(weights, inputs, dropout_key, step.gradients->Spans()));
  return step;
}

absl::StatusOr<ComputeJob::FunctionStep> ComputeJob::RunFunction(sdk::FunctionCall& call) {
  EG_ASSIGN_OR_RETURN(const auto weights, Weights());
  std::vector<sdk::FunctionCall::Variable> variables;
  variables.reserve(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i)
    variables.push_back({layout_->variables()[i].name, layout_->variables()[i].shape.dims(), weights[i]});
  FunctionStep step;
  EG_ASSIGN_OR_RETURN(step.outcome, call.Step(variables, [&](std::uint32_t variable) {
    if (step.gradients == nullptr) step.gradients = std::make_shared<GradientBuffer>(layout_, /*zeroed=*/true);
    return step.gradients->variable(variable);
  }));
  for (const std::uint32_t variable : step.outcome.pushed) {
    const std::span<const float> gradient = step.gradients->variable(variable);
    step.finite = step.finite && std::all_of(gradient.begin(), gradient.end(), [](float g) { return std::isfinite(g); });
  }
  if (step.outcome.last) step.result = call.result();
  return step;
}

absl::StatusOr<StepResult> ComputeJob::Evaluate(const ReadyBatch& batch) {
  EG_ASSIGN_OR_RETURN(const auto weights, Weights());
  const Batch inputs{batch.size, std::vector<std::span<const float>>(spec_->model.inputs.size(), batch.images.floats()), batch.labels.floats()};
  return graph_->Evaluate(weights, inputs);
}

absl::StatusOr<std::int64_t> ComputeJob::EvaluateCounting(std::uint64_t begin, std::uint64_t end) const {
  EG_ASSIGN_OR_RETURN(const auto weights, Weights());
  return CountingSum(*layout_, weights, begin, end);
}

absl::StatusOr<std::vector<std::string>> ComputeJob::Export(const std::string& folder) const {
  EG_ASSIGN_OR_RETURN(const auto weights, Weights());
  std::vector<weights::NamedTensor> tensors;
  for (std::size_t i = 0; i < weights.size(); ++i) tensors.push_back({layout_->variables()[i].name, layout_->variables()[i].shape, weights[i]});
  return WriteWeights(folder, tensors);
}

}  // namespace evergrad::worker

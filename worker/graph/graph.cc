#include "worker/graph/graph.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/graph/losses.h"
#include "worker/graph/summary.h"

namespace evergrad::worker {
namespace {

// What flows along an edge: a model input, or the output of a layer. A view (flatten) shares the storage of what it views, and
// with it the gradient, so that consumers of either side add into one place.
struct Value {
  std::string name;
  tensor::Shape shape;  // of one example
  std::size_t storage = 0;
  bool needs_gradient = false;  // some variable lies upstream
};

struct Storage {
  std::int64_t elements = 0;               // per example
  std::optional<std::size_t> model_input;  // the batch holds the memory
  bool needs_gradient = false;
  tensor::AlignedBuffer data, gradient;  // for batch_max_ examples
  bool gradient_written = false;         // in this step; a second consumer adds
};

struct Node {
  std::unique_ptr<Layer> layer;
  std::size_t input = 0, output = 0;  // values
  std::size_t first_variable = 0;
};

struct LossNode {
  Loss loss;
  std::size_t value = 0;
};

bool AllFinite(std::span<const float> values) {
  // An exponent of all ones is Inf or NaN. In blocks, so that it vectorises and still ends early.
  constexpr std::size_t kBlock = 4096;
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
    const std::size_t end = std::min(values.size(), begin + kBlock);
    std::uint32_t bad = 0;
    for (std::size_t i = begin; i < end; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, &values[i], sizeof bits);
      bad |= (bits & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
    }
    if (bad != 0) return false;
  }
  return true;
}

std::string BatchShape(const tensor::Shape& shape) {
  std::string text = "(None";
  for (const std::uint64_t dim : shape.dims()) absl::StrAppend(&text, ", ", dim);
  return absl::StrCat(text, ")");
}

class GraphImpl final : public Graph {
 public:
  explicit GraphImpl(Backend* backend) : backend_(*backend) {}

  absl::Status Construct(const config::ModelSpec& model);

  const std::vector<Variable>& variables() const override { return variables_; }
  std::string Summary() const override;
  std::uint64_t label_elements() const override { return label_elements_; }

  absl::StatusOr<StepResult> TrainStep(const std::vector<std::span<const float>>& weights, const Batch& batch, std::uint64_t dropout_key,
                                       const std::vector<std::span<float>>& gradients) override;
  absl::StatusOr<StepResult> Evaluate(const std::vector<std::span<const float>>& weights, const Batch& batch) override;

 private:
  absl::Status AddInput(const config::InputSpec& spec);
  absl::Status AddLayer(const config::LayerSpec& spec, const std::vector<config::LayerSpec>& all);
  absl::Status AddLoss(const config::LossSpec& spec, const config::ModelSpec& model);
  absl::Status CheckMetrics(const config::ModelSpec& model);
  absl::Status CheckEverythingIsUsed(const config::ModelSpec& model) const;

  absl::Status CheckBatch(const std::vector<std::span<const float>>& weights, const Batch& batch) const;
  absl::Status Reserve(std::int64_t batch, bool with_gradients);
  In DataOf(std::size_t value, const Batch& batch) const;
  Out Writable(std::size_t value, std::int64_t batch) { return FirstOf(storages_[values_[value].storage].data, value, batch); }
  Out FirstOf(tensor::AlignedBuffer& buffer, std::size_t value, std::int64_t batch) {
    return buffer.floats().first(static_cast<std::size_t>(storages_[values_[value].storage].elements * batch));
  }
  // Calls write(dx) with the memory to overwrite, then adds it to what other consumers wrote.
  template <typename Write>
  void Contribute(std::size_t value, std::int64_t batch, Write write);

  void Forward(const Pass& pass, const std::vector<In>& weights, const Batch& batch);
  absl::StatusOr<StepResult> Losses(const Batch& batch, bool with_gradients);
  void Backward(const Pass& pass, const std::vector<In>& weights, const Batch& batch, const std::vector<Out>& gradients);
  template <typename Span>
  std::vector<Span> OfLayer(const Node& node, const std::vector<Span>& all) const {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(node.first_variable);
    return {begin, begin + static_cast<std::ptrdiff_t>(node.layer->variables().size())};
  }

  Backend& backend_;
  std::vector<Value> values_;
  std::vector<Storage> storages_;
  std::map<std::string, std::size_t> value_of_name_;
  std::vector<Node> nodes_;  // in listed order, which is a topological one
  std::vector<LossNode> losses_;
  std::vector<Variable> variables_;
  std::size_t inputs_ = 0;
  std::uint64_t label_elements_ = 0;
  std::int64_t batch_max_ = 0, gradient_batch_max_ = 0;  // what the buffers hold
  tensor::AlignedBuffer scratch_;                        // a second consumer's gradient before it is added
};

absl::Status ModelError(absl::string_view text) { return UserError(absl::InvalidArgumentError(text)); }

absl::Status GraphImpl::AddInput(const config::InputSpec& spec) {
  if (value_of_name_.count(spec.name) != 0) return ModelError(absl::StrCat("two model inputs have one name: name=", spec.name));
  auto shape = tensor::Shape::Checked(spec.shape);
  if (!shape.ok()) return ModelError(absl::StrCat("input `", spec.name, "`: ", shape.status().message()));
  if (shape->elements() < 1 || shape->elements() > static_cast<std::uint64_t>(kElementsMax)) {
    return ModelError(
        absl::StrCat("input `", spec.name, "`: shape ", shape->ToString(), " has ", shape->elements(), " elements, want 1..", kElementsMax));
  }
  Storage storage;
  storage.elements = static_cast<std::int64_t>(shape->elements());
  storage.model_input = inputs_++;
  value_of_name_[spec.name] = values_.size();
  values_.push_back({spec.name, *std::move(shape), storages_.size(), false});
  storages_.push_back(std::move(storage));
  return absl::OkStatus();
}

absl::Status GraphImpl::AddLayer(const config::LayerSpec& spec, const std::vector<config::LayerSpec>& all) {
  if (spec.name.empty()) return LayerError(spec, "a layer needs a name");
  if (value_of_name_.count(spec.name) != 0) return LayerError(spec, "another layer or a model input has this name");
  if (spec.inputs.empty()) return LayerError(spec, "names no input");
  if (spec.inputs.size() > 1)
    return LayerError(spec, absl::StrCat(spec.type, " takes one input, got ", spec.inputs.size(), ": ", absl::StrJoin(spec.inputs, ", ")));
  const std::string& source = spec.inputs[0];
  const auto found = value_of_name_.find(source);
  if (found == value_of_name_.end()) {
    const bool below = std::any_of(all.begin(), all.end(), [&](const config::LayerSpec& other) { return other.name == source; });
    return LayerError(spec, below ? absl::StrCat("its input `", source, "` is not above it; a layer may only name layers above it and model inputs")
                                  : absl::StrCat("its input `", source, "` is neither a layer nor a model input"));
  }
  EG_ASSIGN_OR_RETURN(std::unique_ptr<Layer> layer, MakeLayer(spec, values_[found->second].shape));
  Node node;
  node.input = found->second;
  node.output = values_.size();
  node.first_variable = variables_.size();
  variables_.insert(variables_.end(), layer->variables().begin(), layer->variables().end());
  Value value{spec.name, layer->output_shape(), values_[node.input].storage, values_[node.input].needs_gradient || !layer->variables().empty()};
  if (!layer->is_view()) {
    value.storage = storages_.size();
    Storage storage;
    storage.elements = static_cast<std::int64_t>(value.shape.elements());
    storage.needs_gradient = value.needs_gradient;
    storages_.push_back(std::move(storage));
  }
  value_of_name_[spec.name] = node.output;
  values_.push_back(std::move(value));
  node.layer = std::move(layer);
  nodes_.push_back(std::move(node));
  return absl::OkStatus();
}

absl::Status GraphImpl::AddLoss(const config::LossSpec& spec, const config::ModelSpec& model) {
  const auto found = value_of_name_.find(spec.output);
  if (found == value_of_name_.end() || found->second < inputs_) return LossError(spec, absl::StrCat("its output `", spec.output, "` is no layer"));
  const auto layer = std::find_if(model.layers.begin(), model.layers.end(), [&](const config::LayerSpec& l) { return l.name == spec.output; });
  LossNode node;
  node.value = found->second;
  EG_ASSIGN_OR_RETURN(node.loss, MakeLoss(spec, values_[found->second].shape, layer->activation));
  const std::uint64_t elements = static_cast<std::uint64_t>(node.loss.label_elements());
  if (!losses_.empty()) {
    if (spec.labels != model.losses[0].labels) {
      return LossError(spec, absl::StrCat("several losses share one field of labels: first=", model.losses[0].labels, " this=", spec.labels));
    }
    if (elements != label_elements_)
      return LossError(spec,
                       absl::StrCat("wants another number of labels an example than the first loss: first=", label_elements_, " this=", elements));
  }
  label_elements_ = elements;
  losses_.push_back(node);
  return absl::OkStatus();
}

absl::Status GraphImpl::CheckMetrics(const config::ModelSpec& model) {
  for (const std::string& metric : model.metrics) {
    if (metric != "accuracy") return ModelError(absl::StrCat("unknown metric `", metric, "`; one of accuracy"));
    Loss& first = losses_[0].loss;
    if (first.type == LossType::kMeanSquaredError) return LossError(model.losses[0], "metric `accuracy` is not defined for it");
    if (first.label_elements() != 1) {
      return LossError(model.losses[0], absl::StrCat("metric `accuracy` needs one label an example; output `", model.losses[0].output, "` wants ",
                                                     first.label_elements()));
    }
    first.accuracy = true;
  }
  return absl::OkStatus();
}

absl::Status GraphImpl::CheckEverythingIsUsed(const config::ModelSpec& model) const {
  std::vector<bool> used(values_.size(), false);
  for (const LossNode& loss : losses_) used[loss.value] = true;
  for (std::size_t n = nodes_.size(); n-- > 0;) {
    if (!used[nodes_[n].output]) return LayerError(model.layers[n], "its output reaches no loss; remove it or use it");
    used[nodes_[n].input] = true;
  }
  for (std::size_t i = 0; i < inputs_; ++i) {
    if (!used[i]) return ModelError(absl::StrCat("input `", values_[i].name, "`: no layer takes it"));
  }
  return absl::OkStatus();
}

absl::Status GraphImpl::Construct(const config::ModelSpec& model) {
  if (model.inputs.empty()) return ModelError("a model needs at least one input: inputs=0");
  if (model.layers.empty()) return ModelError("a model needs at least one layer: layers=0");
  if (model.losses.empty()) return ModelError("a model needs a loss: losses=0");
  for (const config::InputSpec& input : model.inputs) EG_RETURN_IF_ERROR(AddInput(input));
  for (const config::LayerSpec& layer : model.layers) EG_RETURN_IF_ERROR(AddLayer(layer, model.layers));
  for (const config::LossSpec& loss : model.losses) EG_RETURN_IF_ERROR(AddLoss(loss, model));
  EG_RETURN_IF_ERROR(CheckMetrics(model));
  return CheckEverythingIsUsed(model);
}

std::string GraphImpl::Summary() const {
  std::vector<SummaryRow> rows;
  for (std::size_t i = 0; i < inputs_; ++i)
    rows.push_back({absl::StrCat(values_[i].name, " (InputLayer)"), absl::StrCat("[", BatchShape(values_[i].shape), "]"), 0, ""});
  bool chain = inputs_ == 1;
  for (const Node& node : nodes_) {
    std::uint64_t parameters = 0;
    for (const Variable& variable : node.layer->variables()) parameters += variable.shape.elements();
    rows.push_back({absl::StrCat(node.layer->name(), " (", node.layer->type(), ")"), BatchShape(node.layer->output_shape()), parameters,
                    values_[node.input].name});
    chain = chain && node.input + 1 == node.output;
  }
  return SummaryTable(rows, !chain);
}

absl::Status GraphImpl::CheckBatch(const std::vector<std::span<const float>>& weights, const Batch& batch) const {
  if (batch.size < 1) return absl::InvalidArgumentError(absl::StrCat("a batch needs at least one example: size=", batch.size));
  for (const Value& value : values_) {
    const std::int64_t elements = storages_[value.storage].elements;
    if (elements > kElementsMax / batch.size) {
      return UserError(absl::InvalidArgumentError(absl::StrCat("batch too large: value=", value.name, " examples=", batch.size,
                                                               " elements_per_example=", elements, " elements_max=", kElementsMax)));
    }
  }
  if (batch.inputs.size() != inputs_)
    return absl::InvalidArgumentError(absl::StrCat("batch inputs mismatch: want=", inputs_, " got=", batch.inputs.size()));
  const std::size_t examples = static_cast<std::size_t>(batch.size);
  for (std::size_t i = 0; i < inputs_; ++i) {
    const std::size_t want = examples * static_cast<std::size_t>(values_[i].shape.elements());
    if (batch.inputs[i].size() != want)
      return absl::InvalidArgumentError(
          absl::StrCat("input elements mismatch: input=", values_[i].name, " want=", want, " got=", batch.inputs[i].size()));
  }
  if (batch.labels.size() != examples * label_elements_) {
    return absl::InvalidArgumentError(absl::StrCat("label elements mismatch: want=", examples * label_elements_, " got=", batch.labels.size()));
  }
  if (weights.size() != variables_.size())
    return absl::InvalidArgumentError(absl::StrCat("variables mismatch: want=", variables_.size(), " got=", weights.size()));
  for (std::size_t v = 0; v < variables_.size(); ++v) {
    if (weights[v].size() != variables_[v].shape.elements()) {
      return absl::InvalidArgumentError(absl::StrCat("weight elements mismatch: variable=", variables_[v].name,
                                                     " want=", variables_[v].shape.elements(), " got=", weights[v].size()));
    }
  }
  return absl::OkStatus();
}

absl::Status GraphImpl::Reserve(std::int64_t batch, bool with_gradients) {
  try {
    if (batch > batch_max_) {
      batch_max_ = 0;  // until all have grown
      for (Storage& storage : storages_) {
        if (storage.model_input) continue;
        storage.data = {};  // first, or both sizes would be held
        storage.data = tensor::AlignedBuffer(static_cast<std::size_t>(storage.elements * batch) * sizeof(float));
      }
      batch_max_ = batch;
    }
    if (with_gradients && batch > gradient_batch_max_) {
      gradient_batch_max_ = 0;
      for (Storage& storage : storages_) {
        if (!storage.needs_gradient) continue;
        storage.gradient = {};
        storage.gradient = tensor::AlignedBuffer(static_cast<std::size_t>(storage.elements * batch) * sizeof(float));
      }
      gradient_batch_max_ = batch;
    }
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for a batch: examples=", batch));
  }
  return absl::OkStatus();
}

In GraphImpl::DataOf(std::size_t value, const Batch& batch) const {
  const Storage& storage = storages_[values_[value].storage];
  if (storage.model_input) return batch.inputs[*storage.model_input];
  return storage.data.floats().first(static_cast<std::size_t>(storage.elements * batch.size));
}

void GraphImpl::Forward(const Pass& pass, const std::vector<In>& weights, const Batch& batch) {
  for (const Node& node : nodes_) {
    if (!node.layer->is_view()) node.layer->Forward(pass, OfLayer(node, weights), DataOf(node.input, batch), Writable(node.output, batch.size));
  }
}

template <typename Write>
void GraphImpl::Contribute(std::size_t value, std::int64_t batch, Write write) {
  Storage& storage = storages_[values_[value].storage];
  const Out total = FirstOf(storage.gradient, value, batch);
  if (!storage.gradient_written) {
    write(total);
    storage.gradient_written = true;
    return;
  }
  if (scratch_.size() < total.size_bytes()) {
    scratch_ = {};
    scratch_ = tensor::AlignedBuffer(total.size_bytes());
  }
  const Out part = scratch_.floats().first(total.size());
  write(part);
  for (std::size_t i = 0; i < total.size(); ++i) total[i] += part[i];
}

absl::StatusOr<StepResult> GraphImpl::Losses(const Batch& batch, bool with_gradients) {
  StepResult result;
  for (const LossNode& node : losses_) {
    const In output = DataOf(node.value, batch);
    absl::StatusOr<LossValue> value = LossValue();
    if (with_gradients && values_[node.value].needs_gradient) {
      Contribute(node.value, batch.size, [&](Out gradient) { value = ComputeLoss(node.loss, batch.size, output, batch.labels, gradient); });
    } else {
      value = ComputeLoss(node.loss, batch.size, output, batch.labels, {});
    }
    if (!value.ok()) return value.status();
    result.loss_sum += value->sum;
    result.correct += value->correct;
  }
  result.finite = std::isfinite(result.loss_sum);
  return result;
}

void GraphImpl::Backward(const Pass& pass, const std::vector<In>& weights, const Batch& batch, const std::vector<Out>& gradients) {
  for (std::size_t n = nodes_.size(); n-- > 0;) {
    const Node& node = nodes_[n];
    if (node.layer->is_view() || !values_[node.output].needs_gradient) continue;
    Storage& output = storages_[values_[node.output].storage];
    EG_CHECK(output.gradient_written);  // every layer reaches a loss
    const Out dy = FirstOf(output.gradient, node.output, batch.size);
    const auto backward = [&](Out dx) {
      node.layer->Backward(pass, OfLayer(node, weights), DataOf(node.input, batch), DataOf(node.output, batch), dy, dx, OfLayer(node, gradients));
    };
    if (values_[node.input].needs_gradient) {
      Contribute(node.input, batch.size, backward);
    } else {
      backward({});
    }
  }
}

absl::StatusOr<StepResult> GraphImpl::TrainStep(const std::vector<std::span<const float>>& weights, const Batch& batch, std::uint64_t dropout_key,
                                                const std::vector<std::span<float>>& gradients) {
  EG_RETURN_IF_ERROR(CheckBatch(weights, batch));
  if (gradients.size() != variables_.size())
    return absl::InvalidArgumentError(absl::StrCat("gradients mismatch: want=", variables_.size(), " got=", gradients.size()));
  for (std::size_t v = 0; v < variables_.size(); ++v) {
    if (gradients[v].size() != variables_[v].shape.elements()) {
      return absl::InvalidArgumentError(absl::StrCat("gradient elements mismatch: variable=", variables_[v].name,
                                                     " want=", variables_[v].shape.elements(), " got=", gradients[v].size()));
    }
  }
  EG_RETURN_IF_ERROR(Reserve(batch.size, true));
  for (Storage& storage : storages_) storage.gradient_written = false;
  const Pass pass{backend_, batch.size, true, dropout_key};
  Forward(pass, weights, batch);
  EG_RETURN_IF_ERROR(backend_.TakeError());
  EG_ASSIGN_OR_RETURN(StepResult result, Losses(batch, true));
  Backward(pass, weights, batch, gradients);
  EG_RETURN_IF_ERROR(backend_.TakeError());
  for (const Out gradient : gradients) result.finite = result.finite && AllFinite(gradient);
  return result;
}

absl::StatusOr<StepResult> GraphImpl::Evaluate(const std::vector<std::span<const float>>& weights, const Batch& batch) {
  EG_RETURN_IF_ERROR(CheckBatch(weights, batch));
  EG_RETURN_IF_ERROR(Reserve(batch.size, false));
  const Pass pass{backend_, batch.size, false, 0};
  Forward(pass, weights, batch);
  EG_RETURN_IF_ERROR(backend_.TakeError());
  return Losses(batch, false);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Graph>> Graph::Build(const config::ModelSpec& model, Backend* backend) {
  auto graph = std::make_unique<GraphImpl>(backend);
  EG_RETURN_IF_ERROR(graph->Construct(model));
  return graph;
}

}  // namespace evergrad::worker

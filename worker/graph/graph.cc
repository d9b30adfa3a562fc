#include "worker/graph/graph.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/graph/losses.h"
#include "worker/graph/result_block.h"
#include "worker/graph/summary.h"
#include "worker/layers/embedding.h"

namespace evergrad::worker {
namespace {

// The value on an edge: a model input, or the output of a layer. A view (flatten) shares the
// storage of its input, and therefore the gradient, to which the consumers of both add.
struct Value {
  std::string name;
  tensor::Shape shape;  // shape of one example
  std::size_t storage = 0;
  bool needs_gradient = false;  // a variable is upstream of it
};

struct Storage {
  std::int64_t elements = 0;               // per example
  std::optional<std::size_t> model_input;  // the input whose memory is in the batch
  bool needs_gradient = false;
  Memory data, gradient;  // memory for batch_max_ examples
  // Number of consumers that write its gradient: those of the value and of its views, losses
  // included.
  int consumers = 0;
  bool gradient_written = false;  // true once written in this step; further consumers then add
  bool at_loss = false;
  Element type = Element::kFloat32;  // type of `data` and `gradient`
  bool cast_wanted = false;          // some layer reads it in the policy's other type
  bool cast_made = false;            // the cast was made in this step
  Memory cast;
};

struct Node {
  std::unique_ptr<Layer> layer;
  // Indices of values; for an embedding, the model inputs with its ids.
  std::vector<std::size_t> inputs;
  std::size_t output = 0;  // index of a value
  std::size_t first_variable = 0;
  Embedding* embedding = nullptr;      // `layer` if it is an embedding, else nullptr
  std::size_t table = 0;               // used by an embedding
  std::optional<std::size_t> weights;  // used by an embedding: the index of a model input
  std::size_t ids_before = 0;  // ids per example in the embeddings above that read the same table
  std::optional<std::size_t> key;     // index in keys_, for a layer that draws random numbers
  bool wide = false;                  // the job requests float32 for it
  Element reads = Element::kFloat32;  // type of its inputs and kernel
};

struct LossNode {
  Loss loss;
  std::string name;
  std::size_t value = 0;
  ResultBlock::ResultField<LossResult> result;
};

// A metric of the first loss.
struct MetricNode {
  Metric metric;
  ResultBlock::ResultField<std::int64_t> counts;  // auc
  ResultBlock::ResultField<double> sum;           // root_mean_squared_error
};

// Several graphs may use one backend, which tells their steps apart by this number.
std::uint64_t NextGraphNumber() {
  static std::atomic<std::uint64_t> next{0};
  return ++next;
}

std::string BatchShape(const tensor::Shape& shape) {
  std::string text = "(None";
  for (const std::uint64_t dim : shape.dims()) absl::StrAppend(&text, ", ", dim);
  return absl::StrCat(text, ")");
}

class GraphImpl final : public Graph {
 public:
  GraphImpl(Backend* backend, Precision precision)
      : backend_(*backend), narrow_(ElementOf(precision)) {}

  absl::Status Construct(const config::ModelSpec& model);

  const std::vector<Variable>& variables() const override { return variables_; }
  const std::vector<GraphInput>& inputs() const override { return inputs_; }
  const std::vector<config::TableSpec>& tables() const override { return tables_; }
  std::string Summary() const override;
  std::uint64_t label_elements() const override { return label_elements_; }
  const std::vector<Metric>& metrics() const override { return metrics_; }

  absl::Status Lookup(const Batch& batch, UniqueIds* scratch,
                      std::vector<TableRows>* rows) const override;
  void SetLossScale(float scale) override { loss_scale_ = scale; }
  absl::Status QueueTrainStep(const std::vector<AnyIn>& weights, const Rows& rows,
                              const Batch& batch, std::uint64_t dropout_key,
                              const std::vector<AnyOut>& gradients,
                              const std::vector<AnyOut>& row_gradients,
                              const StepEvents& events) override;
  absl::Status QueueEvaluate(const std::vector<AnyIn>& weights, const Rows& rows,
                             const Batch& batch, const StepEvents& events) override;
  absl::StatusOr<StepResult> FinishStep() override;
  absl::Status NoMemory(const absl::Status& cause, std::int64_t examples, bool with_gradients,
                        const CallersMemory& callers) const override;

 private:
  absl::Status AddInput(const config::InputSpec& spec);
  absl::Status AddLayer(const config::LayerSpec& spec, const std::vector<config::LayerSpec>& all);
  absl::StatusOr<std::size_t> FindValue(const config::LayerSpec& spec, const std::string& source,
                                        const std::vector<config::LayerSpec>& all) const;
  // Returns the inputs of an embedding (ids, optional weights, the table), and stores them in
  // `node`, too.
  absl::StatusOr<config::LayerInputs> ReadIds(const config::LayerSpec& spec, Node* node);
  // Declares that the model input is read as `dtype`. LayerError if another layer reads it as
  // another type.
  absl::Status ReadAs(const config::LayerSpec& spec, std::size_t value, tensor::DType dtype);
  absl::Status AddLoss(const config::LossSpec& spec, const config::ModelSpec& model);
  absl::Status AddMetrics(const config::ModelSpec& model);
  absl::Status CheckEverythingIsUsed(const config::ModelSpec& model) const;
  // Allocates the memory that every step needs: keys, results.
  absl::Status LayOut();

  absl::Status CheckInputs(const Batch& batch) const;
  absl::Status CheckBatch(const std::vector<AnyIn>& weights, const Rows& rows,
                          const Batch& batch) const;
  std::span<const std::uint32_t> PositionsOf(const Node& node, const Rows& rows,
                                             std::int64_t batch) const;
  In WeightsOf(const Node& node, const Batch& batch) const {
    return node.weights ? DataOf(*node.weights, batch).floats() : In();
  }
  // Returns the inputs in the types that the node reads.
  std::vector<AnyIn> InputsOf(const Node& node, const Batch& batch) const;
  // Returns whether the node's products read the variable as 16 bits in this step.
  bool IsNarrowed(const Node& node, std::size_t variable) const {
    return node.reads != Element::kFloat32 && variables_[variable].of_products;
  }
  AnyOut NarrowedOf(std::size_t variable) {
    return {narrowed_[variable].as<std::byte>().data(),
            static_cast<std::size_t>(variables_[variable].shape.elements()), narrow_};
  }
  // Returns whether the variable has arrived in the type that products read.
  bool IsReadAsItCame(const Node& node, std::size_t variable, AnyIn came) const {
    return IsNarrowed(node, variable) && came.type() == narrow_;
  }
  std::vector<AnyIn> VariablesOf(const Node& node, const std::vector<AnyIn>& weights);
  // Returns float32 values. 16-bit data of the caller has a float32 copy in the graph's memory;
  // float32 data is used in place.
  static In WideOf(AnyIn given, const Memory& wide) {
    return given.is_float32() ? given.floats() : wide.as<float>().first(given.size());
  }
  static Out WideOf(AnyOut given, Memory& wide) {
    return given.is_float32() ? given.floats() : wide.as<float>().first(given.size());
  }
  absl::Status ReserveWide(const std::vector<AnyIn>& weights, const Rows& rows,
                           const std::vector<AnyOut>& gradients,
                           const std::vector<AnyOut>& row_gradients);
  // Writes a gradient into the caller's memory after its last use, and records overflows under
  // `number`.
  void HandOut(In gradient, AnyOut wanted, std::size_t number);
  // Converts inputs that the node reads in another type, once per step.
  void CastInputs(const Node& node, const Batch& batch);
  // Divides a gradient of weights by the loss scale.
  void Unscale(Out gradient) {
    if (loss_scale_ != 1) backend_.Scale(1 / loss_scale_, gradient, gradient);
  }
  // Adds a regularizer's term to the mean loss, and to `gradient` if there is one.
  void Regularize(double l2, In values, Out gradient,
                  const ResultBlock::ResultField<double>& squares);
  absl::Status Reserve(std::int64_t batch, bool with_gradients);
  absl::Status Grow(std::int64_t batch, bool with_gradients);
  AnyIn DataOf(std::size_t value, const Batch& batch) const;
  AnyIn DataAs(std::size_t value, const Batch& batch, Element type) const;
  AnyOut Writable(std::size_t value, std::int64_t batch) {
    return FirstOf(storages_[values_[value].storage].data, value, batch);
  }
  AnyOut FirstOf(Memory& memory, std::size_t value, std::int64_t batch) {
    const Storage& storage = storages_[values_[value].storage];
    return {memory.as<std::byte>().data(), static_cast<std::size_t>(storage.elements * batch),
            storage.type};
  }
  // Returns the type of the storage's converted copy: the other type of the policy.
  Element CastTypeOf(const Storage& storage) const {
    return storage.type == Element::kFloat32 ? narrow_ : Element::kFloat32;
  }
  // Calls write(dx), which overwrites memory of `type`, and adds the result to the gradients of
  // other consumers.
  template <typename Write>
  void Contribute(std::size_t value, std::int64_t batch, Element type, Write write);

  // Collects everything that determines the calls of a step (Backend::BeginStep).
  void Sign(const std::vector<AnyIn>& weights, const Rows& rows, const Batch& batch,
            const std::vector<AnyOut>& gradients, const std::vector<AnyOut>& row_gradients,
            const StepEvents& events, bool training);
  void Forward(Pass pass, const std::vector<AnyIn>& weights, const Rows& rows, const Batch& batch,
               const StepEvents& events);
  void Losses(const Batch& batch, bool with_gradients);
  void Backward(Pass pass, const std::vector<AnyIn>& weights, const Rows& rows, const Batch& batch,
                const std::vector<AnyOut>& gradients, const std::vector<AnyOut>& row_gradients,
                const StepEvents& events);
  std::span<const std::uint64_t> KeyOf(const Node& node) const {
    return node.key ? keys_.as<std::uint64_t>().subspan(*node.key, 1)
                    : std::span<const std::uint64_t>();
  }
  std::vector<Out> GradientsOf(const Node& node, const std::vector<AnyOut>& gradients) {
    std::vector<Out> wide;
    for (std::size_t v = node.first_variable;
         v < node.first_variable + node.layer->variables().size(); ++v)
      wide.push_back(WideOf(gradients[v], wide_gradients_[v]));
    return wide;
  }

  Backend& backend_;
  std::vector<Value> values_;
  std::vector<Storage> storages_;
  std::map<std::string, std::size_t> value_of_name_;
  std::vector<Node> nodes_;  // in listed order, which is a topological order
  std::vector<LossNode> losses_;
  std::vector<Metric> metrics_;  // metrics of the first loss
  std::vector<MetricNode> metric_nodes_;
  std::vector<Variable> variables_;
  std::vector<GraphInput> inputs_;  // the first values of values_, in this order
  std::vector<bool> input_read_;    // whether the dtype of the input is known
  std::vector<config::TableSpec> tables_;
  std::vector<std::size_t> table_ids_;  // ids per example of each table; 0 if not known yet
  std::uint64_t label_elements_ = 0;
  // Batch sizes for which the buffers are large enough.
  std::int64_t batch_max_ = 0, gradient_batch_max_ = 0;
  Memory scratch_;        // holds a gradient before it is converted, or added to another consumer's
  const Element narrow_;  // the policy's 16-bit type; float32 if it is not mixed
  // By variable: the copy that products read, if it differs from the variable.
  std::vector<Memory> narrowed_;
  // By variable: set if values arrive or gradients are requested as 16 bits.
  std::vector<Memory> wide_, wide_gradients_;
  std::vector<Memory> wide_rows_, wide_row_gradients_;  // by table
  float loss_scale_ = 1;
  ResultBlock results_;
  // For variables and tables with a regularizer.
  std::vector<ResultBlock::ResultField<double>> squares_, row_squares_;
  // The first for all, then one for each variable, then one for each table.
  ResultBlock::ResultField<std::uint64_t> not_finite_, overflows_;
  bool handed_narrow_ = false;            // whether the step to be finished has 16-bit results
  std::vector<std::uint64_t> step_keys_;  // keys of the current step
  Memory keys_;                           // copy of step_keys_ in the backend's memory
  std::int64_t queued_ = 0;               // number of examples of the step to be finished …
  bool queued_gradients_ = false;         // … and whether it is a training step
  std::vector<std::uint64_t> signature_;
  const std::uint64_t number_ = NextGraphNumber();
  std::uint64_t generation_ = 0;  // generation of the buffers
};

absl::Status ModelError(absl::string_view text) {
  return UserError(absl::InvalidArgumentError(text));
}

absl::Status GraphImpl::AddInput(const config::InputSpec& spec) {
  if (value_of_name_.count(spec.name) != 0)
    return ModelError(absl::StrCat("duplicate model input: name=", spec.name));
  auto shape = tensor::Shape::Checked(spec.shape);
  if (!shape.ok())
    return ModelError(absl::StrCat("input `", spec.name, "`: ", shape.status().message()));
  if (shape->elements() < 1 || shape->elements() > static_cast<std::uint64_t>(kElementsMax)) {
    return ModelError(absl::StrCat("input `", spec.name, "`: shape ", shape->ToString(), " has ",
                                   shape->elements(), " elements, want 1..", kElementsMax));
  }
  Storage storage;
  storage.elements = static_cast<std::int64_t>(shape->elements());
  storage.model_input = inputs_.size();
  inputs_.push_back({spec.name, tensor::DType::kFloat32, *shape});
  input_read_.push_back(false);
  value_of_name_[spec.name] = values_.size();
  values_.push_back({spec.name, *std::move(shape), storages_.size(), false});
  storages_.push_back(std::move(storage));
  return absl::OkStatus();
}

absl::Status GraphImpl::AddLayer(const config::LayerSpec& spec,
                                 const std::vector<config::LayerSpec>& all) {
  if (spec.name.empty()) return LayerError(spec, "a layer needs a name");
  if (value_of_name_.count(spec.name) != 0)
    return LayerError(spec, "duplicate name: another layer or a model input has it");
  if (spec.inputs.empty()) return LayerError(spec, "has no input");
  if ((spec.type == "embedding" || spec.type == "factorization_machine") &&
      spec.inputs.size() > backend_.InputsMax())
    return LayerError(spec, absl::StrCat("more inputs than this worker's device supports: inputs=",
                                         spec.inputs.size(), " max=", backend_.InputsMax(),
                                         " device=", backend_.name(),
                                         "; give several ids to an input, or train on CPUs"));
  Node node;
  node.output = values_.size();
  node.first_variable = variables_.size();
  node.wide = spec.dtype == "float32";
  for (const std::string& source : spec.inputs) {
    EG_ASSIGN_OR_RETURN(const std::size_t value, FindValue(spec, source, all));
    node.inputs.push_back(value);
  }
  config::LayerInputs given;
  if (spec.type == "embedding") {
    if (!spec.weights.empty()) {
      EG_ASSIGN_OR_RETURN(node.weights, FindValue(spec, spec.weights, all));
    }
    EG_ASSIGN_OR_RETURN(given, ReadIds(spec, &node));
  } else {
    for (const std::size_t input : node.inputs) {
      EG_RETURN_IF_ERROR(ReadAs(spec, input, tensor::DType::kFloat32));
      given.shapes.push_back(values_[input].shape);
    }
  }
  EG_ASSIGN_OR_RETURN(std::unique_ptr<Layer> layer, MakeLayer(spec, given));
  if (spec.type == "embedding") {
    node.embedding = static_cast<Embedding*>(layer.get());
    node.ids_before = table_ids_[node.table];
    table_ids_[node.table] += node.embedding->ids_per_example();
  }
  variables_.insert(variables_.end(), layer->variables().begin(), layer->variables().end());
  Value value{spec.name, layer->output_shape(), values_[node.inputs[0]].storage,
              node.embedding != nullptr || !layer->variables().empty()};
  for (const std::size_t input : node.inputs)
    value.needs_gradient = value.needs_gradient || values_[input].needs_gradient;
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

absl::StatusOr<std::size_t> GraphImpl::FindValue(const config::LayerSpec& spec,
                                                 const std::string& source,
                                                 const std::vector<config::LayerSpec>& all) const {
  if (const auto found = value_of_name_.find(source); found != value_of_name_.end())
    return found->second;
  const bool below = std::any_of(
      all.begin(), all.end(), [&](const config::LayerSpec& other) { return other.name == source; });
  return LayerError(
      spec, below ? absl::StrCat(
                        "its input `", source,
                        "` is not above it; a layer may only name layers above it and model inputs")
                  : absl::StrCat("its input `", source, "` is neither a layer nor a model input"));
}

absl::Status GraphImpl::ReadAs(const config::LayerSpec& spec, std::size_t value,
                               tensor::DType dtype) {
  if (value >= inputs_.size()) return absl::OkStatus();
  GraphInput& input = inputs_[value];
  if (input_read_[value] && input.dtype != dtype) {
    return LayerError(spec, absl::StrCat("model input `", input.name,
                                         "` is read as ids by an embedding and as numbers by "
                                         "another layer; use one field for each"));
  }
  input.dtype = dtype;
  input_read_[value] = true;
  return absl::OkStatus();
}

absl::StatusOr<config::LayerInputs> GraphImpl::ReadIds(const config::LayerSpec& spec, Node* node) {
  config::LayerInputs given;
  for (const std::size_t input : node->inputs) {
    if (input >= inputs_.size())
      return LayerError(spec, absl::StrCat("embedding reads ids, which only model inputs have: `",
                                           values_[input].name, "` is a layer"));
    EG_RETURN_IF_ERROR(ReadAs(spec, input, tensor::DType::kInt64));
    given.shapes.push_back(values_[input].shape);
  }
  if (node->weights) {
    if (*node->weights >= inputs_.size())
      return LayerError(spec, absl::StrCat("weights are a model input: `",
                                           values_[*node->weights].name, "` is a layer"));
    EG_RETURN_IF_ERROR(ReadAs(spec, *node->weights, tensor::DType::kFloat32));
    given.weights = values_[*node->weights].shape;
  }
  const auto table = std::find_if(tables_.begin(), tables_.end(),
                                  [&](const config::TableSpec& t) { return t.name == spec.table; });
  if (table == tables_.end())
    return LayerError(spec, absl::StrCat("no table `", spec.table, "` in model.tables"));
  node->table = static_cast<std::size_t>(table - tables_.begin());
  given.dimension = table->dimension;
  return given;
}

absl::Status GraphImpl::AddLoss(const config::LossSpec& spec, const config::ModelSpec& model) {
  const auto found = value_of_name_.find(spec.output);
  if (found == value_of_name_.end() || found->second < inputs_.size())
    return LossError(spec, absl::StrCat("its output `", spec.output, "` is no layer"));
  const auto layer =
      std::find_if(model.layers.begin(), model.layers.end(),
                   [&](const config::LayerSpec& l) { return l.name == spec.output; });
  LossNode node;
  node.name = spec.type;
  node.value = found->second;
  EG_ASSIGN_OR_RETURN(node.loss, MakeLoss(spec, values_[found->second].shape, layer->activation));
  const std::uint64_t elements = static_cast<std::uint64_t>(node.loss.label_elements());
  if (!losses_.empty()) {
    if (spec.labels != model.losses[0].labels) {
      return LossError(spec, absl::StrCat("several losses share one field of labels: first=",
                                          model.losses[0].labels, " this=", spec.labels));
    }
    if (elements != label_elements_)
      return LossError(
          spec,
          absl::StrCat("needs another number of labels per example than the first loss: first=",
                       label_elements_, " this=", elements));
  }
  label_elements_ = elements;
  losses_.push_back(node);
  return absl::OkStatus();
}

absl::Status GraphImpl::AddMetrics(const config::ModelSpec& model) {
  for (const std::string& name : model.metrics) {
    EG_ASSIGN_OR_RETURN(const Metric metric,
                        MakeMetric(name, model.losses[0], values_[losses_[0].value].shape));
    losses_[0].loss.accuracy = losses_[0].loss.accuracy || metric.type == MetricType::kAccuracy;
    metrics_.push_back(metric);
  }
  return absl::OkStatus();
}

absl::Status GraphImpl::CheckEverythingIsUsed(const config::ModelSpec& model) const {
  std::vector<bool> used(values_.size(), false);
  for (const LossNode& loss : losses_) used[loss.value] = true;
  for (std::size_t n = nodes_.size(); n-- > 0;) {
    if (!used[nodes_[n].output])
      return LayerError(model.layers[n], "its output reaches no loss; remove it or use it");
    for (const std::size_t input : nodes_[n].inputs) used[input] = true;
    if (nodes_[n].weights) used[*nodes_[n].weights] = true;
  }
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    if (table_ids_[t] == 0)
      return ModelError(absl::StrCat("table `", tables_[t].name, "`: no embedding layer reads it"));
  }
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (!used[i])
      return ModelError(absl::StrCat("input `", values_[i].name, "`: no layer takes it"));
  }
  return absl::OkStatus();
}

absl::Status GraphImpl::Construct(const config::ModelSpec& model) {
  if (model.inputs.empty()) return ModelError("a model needs at least one input: inputs=0");
  if (model.layers.empty()) return ModelError("a model needs at least one layer: layers=0");
  if (model.losses.empty()) return ModelError("a model needs a loss: losses=0");
  for (const config::InputSpec& input : model.inputs) EG_RETURN_IF_ERROR(AddInput(input));
  for (const config::TableSpec& table : model.tables) {
    if (table.dimension < 1)
      return ModelError(absl::StrCat("table `", table.name, "`: dimension must be at least 1"));
    tables_.push_back(table);
  }
  table_ids_.resize(tables_.size());
  for (const config::LayerSpec& layer : model.layers)
    EG_RETURN_IF_ERROR(AddLayer(layer, model.layers));
  for (const config::LossSpec& loss : model.losses) EG_RETURN_IF_ERROR(AddLoss(loss, model));
  EG_RETURN_IF_ERROR(AddMetrics(model));
  EG_RETURN_IF_ERROR(CheckEverythingIsUsed(model));
  return LayOut();
}

absl::Status GraphImpl::LayOut() {
  for (LossNode& loss : losses_) {
    loss.result = results_.Add<LossResult>();
    Storage& storage = storages_[values_[loss.value].storage];
    ++storage.consumers;
    storage.at_loss = true;
  }
  for (const Metric& metric : metrics_) {
    MetricNode node{metric, {}, {}};
    if (metric.type == MetricType::kAuc) node.counts = results_.Add<std::int64_t>(2 * kAucBins);
    if (metric.type == MetricType::kRootMeanSquaredError) node.sum = results_.Add<double>();
    metric_nodes_.push_back(node);
  }
  for (const Variable& variable : variables_)
    squares_.push_back(variable.l2 != 0 ? results_.Add<double>()
                                        : ResultBlock::ResultField<double>());
  for (const config::TableSpec& table : tables_)
    row_squares_.push_back(table.l2 != 0 ? results_.Add<double>()
                                         : ResultBlock::ResultField<double>());
  not_finite_ = results_.Add<std::uint64_t>();
  overflows_ = results_.Add<std::uint64_t>(variables_.size() + tables_.size());
  EG_RETURN_IF_ERROR(results_.Allocate(backend_));
  for (auto* const of_variables : {&narrowed_, &wide_, &wide_gradients_})
    of_variables->resize(variables_.size());
  for (auto* const of_tables : {&wide_rows_, &wide_row_gradients_})
    of_tables->resize(tables_.size());
  std::size_t keys = 0;
  for (Node& node : nodes_) {
    if (node.layer->StepKey(0)) node.key = keys++;
    if (node.layer->is_view()) continue;
    Storage& output = storages_[values_[node.output].storage];
    const Computes computes = node.layer->computes();
    const bool wide = node.wide || computes == Computes::kFloat32 ||
                      (computes == Computes::kNarrow && output.at_loss);
    node.reads = wide ? Element::kFloat32 : narrow_;
    output.type = output.at_loss ? Element::kFloat32 : node.reads;
    for (const std::size_t input : node.inputs) {
      Storage& storage = storages_[values_[input].storage];
      ++storage.consumers;
      if (node.embedding == nullptr && storage.type != node.reads) storage.cast_wanted = true;
    }
    for (std::size_t v = node.first_variable;
         v < node.first_variable + node.layer->variables().size(); ++v) {
      if (!IsNarrowed(node, v)) continue;
      EG_ASSIGN_OR_RETURN(
          narrowed_[v],
          backend_.Allocate(variables_[v].shape.elements() * BytesOf(narrow_), variables_[v].name));
    }
  }
  step_keys_.resize(keys);
  if (keys == 0) return absl::OkStatus();
  EG_ASSIGN_OR_RETURN(keys_, backend_.Allocate(keys * sizeof(std::uint64_t), "keys of a step"));
  return absl::OkStatus();
}

std::string GraphImpl::Summary() const {
  std::vector<SummaryRow> rows;
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    rows.push_back({absl::StrCat(values_[i].name, " (InputLayer)"),
                    absl::StrCat("[", BatchShape(values_[i].shape), "]"), 0, 0, ""});
  bool chain = inputs_.size() == 1;
  for (const Node& node : nodes_) {
    std::uint64_t parameters = 0, moving = 0;
    for (const Variable& variable : node.layer->variables()) {
      parameters += variable.shape.elements();
      if (variable.is_moving_average()) moving += variable.shape.elements();
    }
    rows.push_back({absl::StrCat(node.layer->name(), " (", node.layer->type(), ")"),
                    BatchShape(node.layer->output_shape()), parameters, moving,
                    absl::StrJoin(node.inputs, ", ", [this](std::string* out, std::size_t input) {
                      *out += values_[input].name;
                    })});
    chain = chain && node.inputs.size() == 1 && node.inputs[0] + 1 == node.output;
  }
  return SummaryTable(rows, !chain);
}

absl::Status GraphImpl::CheckInputs(const Batch& batch) const {
  if (batch.size < 1)
    return absl::InvalidArgumentError(
        absl::StrCat("a batch needs at least one example: size=", batch.size));
  for (const Value& value : values_) {
    const std::int64_t elements = storages_[value.storage].elements;
    if (elements > kElementsMax / batch.size) {
      return UserError(absl::InvalidArgumentError(
          absl::StrCat("batch too large: value=", value.name, " examples=", batch.size,
                       " elements_per_example=", elements, " elements_max=", kElementsMax)));
    }
  }
  if (batch.inputs.size() != inputs_.size())
    return absl::InvalidArgumentError(
        absl::StrCat("batch inputs mismatch: want=", inputs_.size(), " got=", batch.inputs.size()));
  const std::size_t examples = static_cast<std::size_t>(batch.size);
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const std::size_t want = examples * static_cast<std::size_t>(values_[i].shape.elements());
    const bool ids = inputs_[i].dtype == tensor::DType::kInt64;
    const std::size_t got = ids ? batch.inputs[i].ids.size() : batch.inputs[i].floats.size();
    if (got != want) {
      return absl::InvalidArgumentError(
          absl::StrCat("input elements mismatch: input=", inputs_[i].name,
                       ids ? " dtype=int64" : "", " want=", want, " got=", got));
    }
  }
  return absl::OkStatus();
}

absl::Status GraphImpl::CheckBatch(const std::vector<AnyIn>& weights, const Rows& rows,
                                   const Batch& batch) const {
  EG_RETURN_IF_ERROR(CheckInputs(batch));
  const std::size_t examples = static_cast<std::size_t>(batch.size);
  if (batch.labels.size() != examples * label_elements_) {
    return absl::InvalidArgumentError(
        absl::StrCat("label elements mismatch: want=", examples * label_elements_,
                     " got=", batch.labels.size()));
  }
  if (weights.size() != variables_.size())
    return absl::InvalidArgumentError(
        absl::StrCat("variables mismatch: want=", variables_.size(), " got=", weights.size()));
  for (std::size_t v = 0; v < variables_.size(); ++v) {
    if (weights[v].size() != variables_[v].shape.elements()) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight elements mismatch: variable=", variables_[v].name,
                       " want=", variables_[v].shape.elements(), " got=", weights[v].size()));
    }
  }
  if (tables_.empty()) return absl::OkStatus();
  if (rows.lookup == nullptr || rows.lookup->size() != tables_.size() ||
      rows.values.size() != tables_.size() ||
      (!rows.positions.empty() && rows.positions.size() != tables_.size()))
    return absl::InvalidArgumentError(absl::StrCat(
        "rows of the wrong tables: want=", tables_.size(), " got=", rows.values.size()));
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    const TableRows& table = (*rows.lookup)[t];
    const std::size_t positions =
        rows.positions.empty() ? table.position.size() : rows.positions[t].size();
    const std::size_t got = rows.values[t].size();
    if (got < table.ids.size() * tables_[t].dimension || got % tables_[t].dimension != 0 ||
        positions != table_ids_[t] * examples) {
      return absl::InvalidArgumentError(
          absl::StrCat("rows mismatch: table=", tables_[t].name, " ids=", table.ids.size(),
                       " dimension=", tables_[t].dimension, " got=", got, " elements"));
    }
  }
  return absl::OkStatus();
}

absl::Status GraphImpl::Lookup(const Batch& batch, UniqueIds* scratch,
                               std::vector<TableRows>* rows) const {
  EG_RETURN_IF_ERROR(CheckInputs(batch));
  rows->resize(tables_.size());
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    TableRows& table = (*rows)[t];
    table.ids.clear();
    table.position.clear();
    scratch->Begin(table_ids_[t] * static_cast<std::size_t>(batch.size));
    for (const Node& node : nodes_) {
      if (node.embedding == nullptr || node.table != t) continue;
      for (const std::size_t input : node.inputs)
        scratch->Add(batch.inputs[input].ids, &table.ids, &table.position);
    }
  }
  return absl::OkStatus();
}

std::span<const std::uint32_t> GraphImpl::PositionsOf(const Node& node, const Rows& rows,
                                                      std::int64_t batch) const {
  const std::size_t examples = static_cast<std::size_t>(batch);
  const std::span<const std::uint32_t> all = rows.positions.empty()
                                                 ? std::span((*rows.lookup)[node.table].position)
                                                 : rows.positions[node.table];
  return all.subspan(node.ids_before * examples, node.embedding->ids_per_example() * examples);
}

std::vector<AnyIn> GraphImpl::InputsOf(const Node& node, const Batch& batch) const {
  std::vector<AnyIn> inputs;
  inputs.reserve(node.inputs.size());
  for (const std::size_t input : node.inputs) inputs.push_back(DataAs(input, batch, node.reads));
  return inputs;
}

std::vector<AnyIn> GraphImpl::VariablesOf(const Node& node, const std::vector<AnyIn>& weights) {
  std::vector<AnyIn> variables;
  for (std::size_t v = node.first_variable;
       v < node.first_variable + node.layer->variables().size(); ++v) {
    variables.push_back(IsReadAsItCame(node, v, weights[v]) ? weights[v]
                        : IsNarrowed(node, v)               ? AnyIn(NarrowedOf(v))
                                                            : AnyIn(WideOf(weights[v], wide_[v])));
  }
  return variables;
}

absl::Status GraphImpl::ReserveWide(const std::vector<AnyIn>& weights, const Rows& rows,
                                    const std::vector<AnyOut>& gradients,
                                    const std::vector<AnyOut>& row_gradients) {
  const auto reserve = [this](AnyIn given, const std::string& name, Memory* wide) -> absl::Status {
    if (given.is_float32() || given.size() * sizeof(float) <= wide->bytes())
      return absl::OkStatus();
    ++generation_;
    *wide = {};  // freed first, because the old and the new size may not fit together
    EG_ASSIGN_OR_RETURN(
        *wide, backend_.Allocate(given.size() * sizeof(float), absl::StrCat(name, " as float32")));
    return absl::OkStatus();
  };
  for (std::size_t v = 0; v < weights.size(); ++v)
    EG_RETURN_IF_ERROR(reserve(weights[v], variables_[v].name, &wide_[v]));
  for (std::size_t v = 0; v < gradients.size(); ++v)
    EG_RETURN_IF_ERROR(reserve(gradients[v], variables_[v].name, &wide_gradients_[v]));
  absl::Status reserved;
  for (std::size_t t = 0; t < tables_.size(); ++t)
    reserved.Update(reserve(rows.values[t], tables_[t].name, &wide_rows_[t]));
  for (std::size_t t = 0; t < row_gradients.size(); ++t)
    reserved.Update(reserve(row_gradients[t], tables_[t].name, &wide_row_gradients_[t]));
  if (reserved.ok()) return reserved;
  for (std::vector<Memory>* const of_tables :
       {&wide_rows_, &wide_row_gradients_})  // fewer rows may fit
    for (Memory& memory : *of_tables) memory = {};
  return reserved;
}

void GraphImpl::HandOut(In gradient, AnyOut wanted, std::size_t number) {
  if (wanted.is_float32()) return;
  backend_.Copy(gradient, wanted);
  backend_.FindNotFinite(wanted, results_.Of(overflows_).data() + number);
}

void GraphImpl::CastInputs(const Node& node, const Batch& batch) {
  for (const std::size_t input : node.inputs) {
    Storage& storage = storages_[values_[input].storage];
    if (storage.type == node.reads || std::exchange(storage.cast_made, true)) continue;
    const AnyIn data = DataOf(input, batch);
    backend_.Copy(data, AnyOut(storage.cast.as<std::byte>().data(), data.size(), node.reads));
  }
}

void GraphImpl::Regularize(double l2, In values, Out gradient,
                           const ResultBlock::ResultField<double>& squares) {
  if (l2 == 0) return;
  backend_.SumOfSquares(values, results_.Of(squares).data());
  if (!gradient.empty()) backend_.AddScaled(static_cast<float>(2 * l2), values, gradient);
}

absl::Status GraphImpl::Reserve(std::int64_t batch, bool with_gradients) {
  if (batch <= batch_max_ && (!with_gradients || batch <= gradient_batch_max_))
    return absl::OkStatus();
  ++generation_;
  const absl::Status grown = Grow(batch, with_gradients);
  if (grown.ok()) return grown;
  // Frees the memory that was allocated for the batch.
  for (Storage& storage : storages_) storage.data = {}, storage.gradient = {}, storage.cast = {};
  scratch_ = {};
  batch_max_ = gradient_batch_max_ = 0;
  return NoMemory(grown, batch, with_gradients, {});
}

absl::Status GraphImpl::Grow(std::int64_t batch, bool with_gradients) {
  const auto allocate = [&](const std::string& what, std::int64_t elements, Element type,
                            Memory* memory) -> absl::Status {
    EG_ASSIGN_OR_RETURN(
        *memory,
        backend_.Allocate(static_cast<std::size_t>(elements * batch) * BytesOf(type), what));
    return absl::OkStatus();
  };
  if (batch > batch_max_) {
    batch_max_ = 0;  // stays 0 until all have grown
    for (Storage& storage : storages_)
      storage.data = {},
      storage.cast = {};  // freed first, because the old and the new size may not fit together
    for (const Value& value : values_) {
      Storage& storage = storages_[value.storage];
      if (!storage.cast_wanted || storage.cast.bytes() > 0) continue;
      EG_RETURN_IF_ERROR(allocate(absl::StrCat(value.name, " as ", NameOf(CastTypeOf(storage))),
                                  storage.elements, CastTypeOf(storage), &storage.cast));
    }
    for (const Node& node : nodes_) {
      if (node.layer->is_view()) continue;
      Storage& storage = storages_[values_[node.output].storage];
      EG_RETURN_IF_ERROR(
          allocate(node.layer->name(), storage.elements, storage.type, &storage.data));
      EG_RETURN_IF_ERROR(node.layer->Reserve(backend_, batch));
    }
    batch_max_ = batch;
  }
  if (with_gradients && batch > gradient_batch_max_) {
    gradient_batch_max_ = 0;
    for (Storage& storage : storages_) storage.gradient = {};
    scratch_ = {};
    // Elements with several writing consumers, or with a consumer of another type.
    std::int64_t added = 0;
    for (const Node& node : nodes_) {
      Storage& storage = storages_[values_[node.output].storage];
      if (node.layer->is_view() || !storage.needs_gradient) continue;
      EG_RETURN_IF_ERROR(allocate(absl::StrCat("gradient of ", node.layer->name()),
                                  storage.elements, storage.type, &storage.gradient));
      if (storage.consumers > 1 || storage.cast_wanted) added = std::max(added, storage.elements);
    }
    if (added > 0)
      EG_RETURN_IF_ERROR(allocate("sums of gradients", added, Element::kFloat32, &scratch_));
    gradient_batch_max_ = batch;
  }
  return absl::OkStatus();
}

absl::Status GraphImpl::NoMemory(const absl::Status& cause, std::int64_t examples,
                                 bool with_gradients, const CallersMemory& callers) const {
  std::uint64_t per_example = callers.per_example, held = callers.held + scratch_.bytes();
  for (const Storage& storage : storages_) {
    const std::uint64_t elements = static_cast<std::uint64_t>(storage.elements);
    if (!storage.model_input)
      per_example +=
          elements * (with_gradients && storage.needs_gradient ? 2 : 1) * BytesOf(storage.type);
    if (storage.cast_wanted) per_example += elements * BytesOf(CastTypeOf(storage));
    held += storage.data.bytes() + storage.gradient.bytes() + storage.cast.bytes();
  }
  const MemoryUse use = backend_.memory();
  const std::uint64_t there = use.free + use.reserved - use.used + held;
  std::uint64_t fit = there <= callers.still_wanted ? 0
                                                    : (there - callers.still_wanted) /
                                                          std::max<std::uint64_t>(1, per_example);
  // The batch did not fit although the estimate does, because of fragmentation or of a layer's own
  // memory.
  if (fit >= static_cast<std::uint64_t>(examples)) fit = static_cast<std::uint64_t>(examples) / 2;
  return absl::ResourceExhaustedError(absl::StrCat(
      "out of memory for a batch: examples=", examples, " bytes_per_example=", per_example,
      " examples_that_may_fit=", fit, " cause=", cause.message()));
}

AnyIn GraphImpl::DataOf(std::size_t value, const Batch& batch) const {
  const Storage& storage = storages_[values_[value].storage];
  if (storage.model_input) return batch.inputs[*storage.model_input].floats;
  return {storage.data.as<std::byte>().data(),
          static_cast<std::size_t>(storage.elements * batch.size), storage.type};
}

AnyIn GraphImpl::DataAs(std::size_t value, const Batch& batch, Element type) const {
  const Storage& storage = storages_[values_[value].storage];
  if (storage.type == type) return DataOf(value, batch);
  return {storage.cast.as<std::byte>().data(),
          static_cast<std::size_t>(storage.elements * batch.size), type};
}

void GraphImpl::Sign(const std::vector<AnyIn>& weights, const Rows& rows, const Batch& batch,
                     const std::vector<AnyOut>& gradients, const std::vector<AnyOut>& row_gradients,
                     const StepEvents& events, bool training) {
  signature_.assign(
      {number_, generation_, static_cast<std::uint64_t>(batch.size), training ? 1u : 0u});
  const auto address = [this](const void* at) {
    signature_.push_back(reinterpret_cast<std::uintptr_t>(at));
  };
  const auto all = [&](const auto& spans) {
    for (const auto& span : spans) {
      address(span.data());
      signature_.push_back(span.size());
      signature_.push_back(static_cast<std::uint64_t>(span.type()));
    }
  };
  all(weights);
  all(gradients);
  all(row_gradients);
  all(rows.values);
  for (std::size_t t = 0; t < tables_.size(); ++t)
    address(rows.positions.empty() ? (*rows.lookup)[t].position.data() : rows.positions[t].data());
  for (const Values& input : batch.inputs) address(input.floats.data());
  address(batch.labels.data());
  signature_.push_back(std::bit_cast<std::uint32_t>(loss_scale_));
  for (const Event* event : events.there) address(event);
  for (const Event* event : events.made) address(event);
}

void GraphImpl::Forward(Pass pass, const std::vector<AnyIn>& weights, const Rows& rows,
                        const Batch& batch, const StepEvents& events) {
  for (Storage& storage : storages_) storage.cast_made = false;
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    if (rows.values[t].is_float32()) continue;
    backend_.Enter(tables_[t].name, Phase::kForward);
    backend_.Copy(rows.values[t], wide_rows_[t].as<float>().first(rows.values[t].size()));
  }
  for (const Node& node : nodes_) {
    if (node.layer->is_view()) continue;
    backend_.Enter(node.layer->name(), Phase::kForward);
    for (std::size_t v = node.first_variable;
         v < node.first_variable + node.layer->variables().size(); ++v) {
      if (v < events.there.size() && events.there[v] != nullptr)
        backend_.Await(DeviceQueue::kCompute, *events.there[v]);
      const bool as_it_came = IsReadAsItCame(node, v, weights[v]);
      if (!weights[v].is_float32() && (!as_it_came || variables_[v].l2 != 0))
        backend_.Copy(weights[v], wide_[v].as<float>().first(weights[v].size()));
      if (IsNarrowed(node, v) && !as_it_came)
        backend_.Copy(WideOf(weights[v], wide_[v]), NarrowedOf(v));
    }
    if (node.embedding == nullptr) CastInputs(node, batch);
    pass.key = KeyOf(node);
    const AnyOut y = Writable(node.output, batch.size);
    if (node.embedding != nullptr)
      node.embedding->Gather(pass, PositionsOf(node, rows, batch.size),
                             WideOf(rows.values[node.table], wide_rows_[node.table]),
                             WeightsOf(node, batch), y);
    else if (node.layer->merges())
      node.layer->Merge(pass, InputsOf(node, batch), y);
    else
      node.layer->Forward(pass, VariablesOf(node, weights),
                          DataAs(node.inputs[0], batch, node.reads), y);
  }
}

template <typename Write>
void GraphImpl::Contribute(std::size_t value, std::int64_t batch, Element type, Write write) {
  Storage& storage = storages_[values_[value].storage];
  const AnyOut total = FirstOf(storage.gradient, value, batch);
  const bool first = !std::exchange(storage.gradient_written, true);
  if (first && type == storage.type) return write(total);
  const AnyOut part(scratch_.as<std::byte>().data(), total.size(), type);
  write(part);
  if (first)
    backend_.Copy(part, total);
  else
    backend_.AddScaled(1, part, total);
}

void GraphImpl::Losses(const Batch& batch, bool with_gradients) {
  for (const LossNode& node : losses_) {
    backend_.Enter(node.name, Phase::kLoss);
    const In output = DataOf(node.value, batch).floats();
    const auto compute = [&](AnyOut to) {
      const Out gradient = to.floats();
      backend_.ComputeLoss(node.loss, batch.size, output, batch.labels, gradient,
                           results_.Of(node.result).data());
      if (!gradient.empty() && loss_scale_ != 1) backend_.Scale(loss_scale_, gradient, gradient);
    };
    if (with_gradients && values_[node.value].needs_gradient)
      Contribute(node.value, batch.size, Element::kFloat32, compute);
    else
      compute({});
  }
  const Loss& loss = losses_[0].loss;
  const In output = DataOf(losses_[0].value, batch).floats();
  for (const MetricNode& node : metric_nodes_) {
    if (node.counts.count > 0)
      backend_.CountAuc(loss.from_logits, output, batch.labels, results_.Of(node.counts));
    if (node.sum.count > 0)
      backend_.SumOfMeanSquares(batch.size, loss.label_elements(), output, batch.labels,
                                results_.Of(node.sum).data());
  }
}

void GraphImpl::Backward(Pass pass, const std::vector<AnyIn>& weights, const Rows& rows,
                         const Batch& batch, const std::vector<AnyOut>& gradients,
                         const std::vector<AnyOut>& row_gradients, const StepEvents& events) {
  std::uint64_t* const not_finite = results_.Of(not_finite_).data();
  for (std::size_t n = nodes_.size(); n-- > 0;) {
    const Node& node = nodes_[n];
    if (node.layer->is_view() || !values_[node.output].needs_gradient) continue;
    backend_.Enter(node.layer->name(), Phase::kBackward);
    pass.key = KeyOf(node);
    Storage& output = storages_[values_[node.output].storage];
    EG_CHECK(output.gradient_written);  // every layer reaches a loss
    const AnyOut dy = FirstOf(output.gradient, node.output, batch.size);
    if (node.embedding != nullptr) {
      node.embedding->Scatter(pass, PositionsOf(node, rows, batch.size), WeightsOf(node, batch), dy,
                              WideOf(row_gradients[node.table], wide_row_gradients_[node.table]));
      continue;
    }
    if (node.layer->merges()) {
      const std::vector<AnyIn> inputs = InputsOf(node, batch);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (!values_[node.inputs[i]].needs_gradient) continue;
        Contribute(node.inputs[i], batch.size, node.reads, [&](AnyOut dx) {
          node.layer->Unmerge(pass, inputs, DataOf(node.output, batch), dy, i, dx);
        });
      }
      continue;
    }
    const std::size_t input = node.inputs[0];
    const auto backward = [&](AnyOut dx) {
      node.layer->Backward(pass, VariablesOf(node, weights), DataAs(input, batch, node.reads),
                           DataOf(node.output, batch), dy, dx, GradientsOf(node, gradients));
    };
    if (values_[input].needs_gradient) {
      Contribute(input, batch.size, node.reads, backward);
    } else {
      backward({});
    }
    for (std::size_t v = node.first_variable;
         v < node.first_variable + node.layer->variables().size(); ++v) {
      const Out gradient = WideOf(gradients[v], wide_gradients_[v]);
      if (!variables_[v].is_moving_average()) Unscale(gradient);
      Regularize(variables_[v].l2, WideOf(weights[v], wide_[v]), gradient, squares_[v]);
      backend_.FindNotFinite(gradient, not_finite);
      HandOut(gradient, gradients[v], v);
      if (v < events.made.size() && events.made[v] != nullptr)
        backend_.Record(DeviceQueue::kCompute, *events.made[v]);
    }
  }
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    backend_.Enter(tables_[t].name, Phase::kFinish);
    const Out gradient = WideOf(row_gradients[t], wide_row_gradients_[t]);
    Unscale(gradient);
    Regularize(tables_[t].l2, WideOf(rows.values[t], wide_rows_[t]), gradient, row_squares_[t]);
    backend_.FindNotFinite(gradient, not_finite);
    HandOut(gradient, row_gradients[t], variables_.size() + t);
  }
}

absl::Status GraphImpl::QueueTrainStep(const std::vector<AnyIn>& weights, const Rows& rows,
                                       const Batch& batch, std::uint64_t dropout_key,
                                       const std::vector<AnyOut>& gradients,
                                       const std::vector<AnyOut>& row_gradients,
                                       const StepEvents& events) {
  EG_RETURN_IF_ERROR(CheckBatch(weights, rows, batch));
  if (gradients.size() != variables_.size())
    return absl::InvalidArgumentError(
        absl::StrCat("gradients mismatch: want=", variables_.size(), " got=", gradients.size()));
  for (std::size_t v = 0; v < variables_.size(); ++v) {
    if (gradients[v].size() != variables_[v].shape.elements()) {
      return absl::InvalidArgumentError(
          absl::StrCat("gradient elements mismatch: variable=", variables_[v].name,
                       " want=", variables_[v].shape.elements(), " got=", gradients[v].size()));
    }
  }
  if (row_gradients.size() != tables_.size())
    return absl::InvalidArgumentError(absl::StrCat(
        "row gradients mismatch: tables=", tables_.size(), " got=", row_gradients.size()));
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    if (row_gradients[t].size() != rows.values[t].size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("row gradient elements mismatch: table=", tables_[t].name,
                       " want=", rows.values[t].size(), " got=", row_gradients[t].size()));
    }
  }
  EG_RETURN_IF_ERROR(Reserve(batch.size, true));
  EG_RETURN_IF_ERROR(ReserveWide(weights, rows, gradients, row_gradients));
  const auto narrow = [](AnyOut wanted) { return !wanted.is_float32(); };
  handed_narrow_ = std::any_of(gradients.begin(), gradients.end(), narrow) ||
                   std::any_of(row_gradients.begin(), row_gradients.end(), narrow);
  if (!step_keys_.empty()) {
    for (const Node& node : nodes_) {
      if (node.key) step_keys_[*node.key] = *node.layer->StepKey(dropout_key);
    }
    backend_.Upload(DeviceQueue::kCompute, std::as_bytes(std::span(step_keys_)),
                    keys_.as<std::byte>().first(step_keys_.size() * sizeof(std::uint64_t)));
  }
  queued_ = batch.size, queued_gradients_ = true;
  Sign(weights, rows, batch, gradients, row_gradients, events, true);
  if (!backend_.BeginStep(signature_)) {
    for (Storage& storage : storages_) storage.gradient_written = false;
    const Pass pass{backend_, batch.size, true, {}};
    backend_.Enter("step", Phase::kForward);
    backend_.Zero(std::as_writable_bytes(results_.Of(not_finite_)));
    if (handed_narrow_) backend_.Zero(std::as_writable_bytes(results_.Of(overflows_)));
    for (std::size_t t = 0; t < tables_.size(); ++t)
      backend_.Zero(std::as_writable_bytes(WideOf(row_gradients[t], wide_row_gradients_[t])));
    Forward(pass, weights, rows, batch, events);
    Losses(batch, true);
    Backward(pass, weights, rows, batch, gradients, row_gradients, events);
  }
  backend_.EndStep();
  return absl::OkStatus();
}

absl::Status GraphImpl::QueueEvaluate(const std::vector<AnyIn>& weights, const Rows& rows,
                                      const Batch& batch, const StepEvents& events) {
  EG_RETURN_IF_ERROR(CheckBatch(weights, rows, batch));
  EG_RETURN_IF_ERROR(Reserve(batch.size, false));
  EG_RETURN_IF_ERROR(ReserveWide(weights, rows, {}, {}));
  handed_narrow_ = false;
  queued_ = batch.size, queued_gradients_ = false;
  Sign(weights, rows, batch, {}, {}, events, false);
  if (!backend_.BeginStep(signature_)) {
    backend_.Enter("step", Phase::kForward);
    backend_.Zero(std::as_writable_bytes(results_.Of(not_finite_)));
    Forward({backend_, batch.size, false, {}}, weights, rows, batch, events);
    Losses(batch, false);
    backend_.Enter("regularizers", Phase::kFinish);
    for (std::size_t v = 0; v < variables_.size(); ++v)
      Regularize(variables_[v].l2, WideOf(weights[v], wide_[v]), {}, squares_[v]);
    for (std::size_t t = 0; t < tables_.size(); ++t)
      Regularize(tables_[t].l2, WideOf(rows.values[t], wide_rows_[t]), {}, row_squares_[t]);
  }
  backend_.EndStep();
  return absl::OkStatus();
}

absl::StatusOr<StepResult> GraphImpl::FinishStep() {
  EG_CHECK(queued_ > 0);
  const std::int64_t batch = std::exchange(queued_, 0);
  if (const absl::Status fetched = results_.Fetch(backend_); !fetched.ok())
    return absl::IsResourceExhausted(fetched) ? NoMemory(fetched, batch, queued_gradients_, {})
                                              : fetched;
  StepResult result;
  for (const LossNode& node : losses_) {
    const LossResult loss = results_.Get(node.result);
    EG_RETURN_IF_ERROR(CheckLabels(node.loss, loss));
    result.loss_sum += loss.sum;
  }
  for (const MetricNode& node : metric_nodes_) {
    MetricSum& sum = result.metrics.emplace_back();
    if (node.metric.type == MetricType::kAccuracy)
      sum.count = results_.Get(losses_[0].result).correct;
    if (node.sum.count > 0) sum.sum = results_.Get(node.sum);
    for (std::size_t i = 0; i < node.counts.count; ++i)
      sum.counts.push_back(results_.Get(node.counts, i));
  }
  double regularizers = 0;
  for (std::size_t v = 0; v < variables_.size(); ++v) {
    if (variables_[v].l2 != 0) regularizers += variables_[v].l2 * results_.Get(squares_[v]);
  }
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    if (tables_[t].l2 != 0) regularizers += tables_[t].l2 * results_.Get(row_squares_[t]);
  }
  result.loss_sum += static_cast<double>(batch) * regularizers;
  result.finite = std::isfinite(result.loss_sum) && results_.Get(not_finite_) == 0;
  const auto first_overflow = [&](std::size_t begin, std::size_t count) {
    for (std::size_t i = 0; handed_narrow_ && i < count; ++i)
      if (results_.Get(overflows_, begin + i) != 0) return static_cast<int>(i);
    return -1;
  };
  result.overflowed = first_overflow(0, variables_.size());
  result.rows_overflowed = first_overflow(variables_.size(), tables_.size());
  return result;
}

}  // namespace

absl::StatusOr<std::vector<TableRows>> Graph::Lookup(const Batch& batch) const {
  UniqueIds scratch;
  std::vector<TableRows> rows;
  EG_RETURN_IF_ERROR(Lookup(batch, &scratch, &rows));
  return rows;
}

absl::StatusOr<StepResult> Graph::TrainStep(const std::vector<AnyIn>& weights, const Rows& rows,
                                            const Batch& batch, std::uint64_t dropout_key,
                                            const std::vector<AnyOut>& gradients,
                                            const std::vector<AnyOut>& row_gradients) {
  EG_RETURN_IF_ERROR(
      QueueTrainStep(weights, rows, batch, dropout_key, gradients, row_gradients, {}));
  return FinishStep();
}

absl::StatusOr<StepResult> Graph::Evaluate(const std::vector<AnyIn>& weights, const Rows& rows,
                                           const Batch& batch) {
  EG_RETURN_IF_ERROR(QueueEvaluate(weights, rows, batch, {}));
  return FinishStep();
}

absl::StatusOr<std::unique_ptr<Graph>> Graph::Build(const config::ModelSpec& model,
                                                    Backend* backend, Precision precision) {
  auto graph = std::make_unique<GraphImpl>(backend, precision);
  EG_RETURN_IF_ERROR(graph->Construct(model));
  return graph;
}

}  // namespace evergrad::worker

#include "worker/graph/graph_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/graph/losses.h"

namespace evergrad::worker {
namespace {

absl::Status ModelError(absl::string_view text) {
  return UserError(absl::InvalidArgumentError(text));
}

}  // namespace

absl::Status GraphBuilder::AddInput(const config::InputSpec& spec) {
  if (value_of_name_.count(spec.name) != 0)
    return ModelError(absl::StrCat("duplicate model input: name=", spec.name));
  auto shape = tensor::Shape::Checked(spec.shape);
  if (!shape.ok())
    return ModelError(absl::StrCat("input `", spec.name, "`: ", shape.status().message()));
  if (shape->elements() < 1 || shape->elements() > static_cast<std::uint64_t>(kElementsMax)) {
    return ModelError(absl::StrCat("input `", spec.name, "`: shape ", shape->ToString(), " has ",
                                   shape->elements(), " elements, want 1..", kElementsMax));
  }
  GraphStorage storage;
  storage.elements = static_cast<std::int64_t>(shape->elements());
  storage.model_input = nodes_.inputs.size();
  nodes_.inputs.push_back({spec.name, tensor::DType::kFloat32, *shape});
  input_read_.push_back(false);
  value_of_name_[spec.name] = nodes_.values.size();
  nodes_.values.push_back({spec.name, *std::move(shape), nodes_.storages.size(), false});
  nodes_.storages.push_back(std::move(storage));
  return absl::OkStatus();
}

absl::Status GraphBuilder::AddLayer(const config::LayerSpec& spec,
                                    const std::vector<config::LayerSpec>& all) {
  if (spec.name.empty()) return LayerError(spec, "a layer needs a name");
  if (value_of_name_.count(spec.name) != 0)
    return LayerError(spec, "duplicate name: another layer or a model input has the same name");
  if (spec.inputs.empty()) return LayerError(spec, "the layer has no input");
  if ((spec.type == "embedding" || spec.type == "factorization_machine") &&
      spec.inputs.size() > backend_.InputsMax())
    return LayerError(spec, absl::StrCat("more inputs than this worker's device supports: inputs=",
                                         spec.inputs.size(), " max=", backend_.InputsMax(),
                                         " device=", backend_.name(),
                                         "; give several ids to an input, or train on CPUs"));
  GraphLayer node;
  node.output = nodes_.values.size();
  node.first_variable = nodes_.variables.size();
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
      given.shapes.push_back(nodes_.values[input].shape);
    }
  }
  EG_ASSIGN_OR_RETURN(std::unique_ptr<Layer> layer, MakeLayer(spec, given));
  if (spec.type == "embedding") {
    node.embedding = static_cast<Embedding*>(layer.get());
    node.ids_before = nodes_.table_ids[node.table];
    nodes_.table_ids[node.table] += node.embedding->ids_per_example();
  }
  nodes_.variables.insert(nodes_.variables.end(), layer->variables().begin(),
                          layer->variables().end());
  GraphValue value{spec.name, layer->output_shape(), nodes_.values[node.inputs[0]].storage,
                   node.embedding != nullptr || !layer->variables().empty()};
  for (const std::size_t input : node.inputs)
    value.needs_gradient = value.needs_gradient || nodes_.values[input].needs_gradient;
  if (!layer->is_view()) {
    value.storage = nodes_.storages.size();
    GraphStorage storage;
    storage.elements = static_cast<std::int64_t>(value.shape.elements());
    storage.needs_gradient = value.needs_gradient;
    nodes_.storages.push_back(std::move(storage));
  }
  value_of_name_[spec.name] = node.output;
  nodes_.values.push_back(std::move(value));
  node.layer = std::move(layer);
  nodes_.layers.push_back(std::move(node));
  return absl::OkStatus();
}

absl::StatusOr<std::size_t> GraphBuilder::FindValue(
    const config::LayerSpec& spec, const std::string& source,
    const std::vector<config::LayerSpec>& all) const {
  if (const auto found = value_of_name_.find(source); found != value_of_name_.end())
    return found->second;
  const bool below = std::any_of(
      all.begin(), all.end(), [&](const config::LayerSpec& other) { return other.name == source; });
  return LayerError(
      spec, below ? absl::StrCat(
                        "its input `", source,
                        "` is not above it; a layer may name only model inputs and layers above it")
                  : absl::StrCat("its input `", source, "` is neither a layer nor a model input"));
}

absl::Status GraphBuilder::ReadAs(const config::LayerSpec& spec, std::size_t value,
                                  tensor::DType dtype) {
  if (value >= nodes_.inputs.size()) return absl::OkStatus();
  GraphInput& input = nodes_.inputs[value];
  if (input_read_[value] && input.dtype != dtype) {
    return LayerError(spec, absl::StrCat("model input `", input.name,
                                         "` is read as ids by an embedding and as numbers by "
                                         "another layer; use one field for each"));
  }
  input.dtype = dtype;
  input_read_[value] = true;
  return absl::OkStatus();
}

absl::StatusOr<config::LayerInputs> GraphBuilder::ReadIds(const config::LayerSpec& spec,
                                                          GraphLayer* node) {
  config::LayerInputs given;
  for (const std::size_t input : node->inputs) {
    if (input >= nodes_.inputs.size())
      return LayerError(spec,
                        absl::StrCat("an embedding reads ids, which only model inputs have: `",
                                     nodes_.values[input].name, "` is a layer"));
    EG_RETURN_IF_ERROR(ReadAs(spec, input, tensor::DType::kInt64));
    given.shapes.push_back(nodes_.values[input].shape);
  }
  if (node->weights) {
    if (*node->weights >= nodes_.inputs.size())
      return LayerError(spec, absl::StrCat("its `weights` must be a model input, but `",
                                           nodes_.values[*node->weights].name, "` is a layer"));
    EG_RETURN_IF_ERROR(ReadAs(spec, *node->weights, tensor::DType::kFloat32));
    given.weights = nodes_.values[*node->weights].shape;
  }
  const auto table = std::find_if(nodes_.tables.begin(), nodes_.tables.end(),
                                  [&](const config::TableSpec& t) { return t.name == spec.table; });
  if (table == nodes_.tables.end())
    return LayerError(spec, absl::StrCat("no table `", spec.table, "` in model.tables"));
  node->table = static_cast<std::size_t>(table - nodes_.tables.begin());
  given.dimension = table->dimension;
  return given;
}

absl::Status GraphBuilder::AddLoss(const config::LossSpec& spec, const config::ModelSpec& model) {
  const auto found = value_of_name_.find(spec.output);
  if (found == value_of_name_.end() || found->second < nodes_.inputs.size())
    return LossError(spec, absl::StrCat("its output `", spec.output, "` is not a layer"));
  const auto layer =
      std::find_if(model.layers.begin(), model.layers.end(),
                   [&](const config::LayerSpec& l) { return l.name == spec.output; });
  GraphLoss node;
  node.name = spec.type;
  node.value = found->second;
  EG_ASSIGN_OR_RETURN(node.loss,
                      MakeLoss(spec, nodes_.values[found->second].shape, layer->activation));
  const std::uint64_t elements = static_cast<std::uint64_t>(node.loss.label_elements());
  if (!nodes_.losses.empty()) {
    if (spec.labels != model.losses[0].labels) {
      return LossError(spec, absl::StrCat("all losses must use the same field of labels: first=",
                                          model.losses[0].labels, " this=", spec.labels));
    }
    if (elements != nodes_.label_elements)
      return LossError(
          spec, absl::StrCat("the number of labels per example differs from the first loss: first=",
                             nodes_.label_elements, " this=", elements));
  }
  nodes_.label_elements = elements;
  nodes_.losses.push_back(node);
  return absl::OkStatus();
}

absl::Status GraphBuilder::AddMetrics(const config::ModelSpec& model) {
  for (const std::string& name : model.metrics) {
    EG_ASSIGN_OR_RETURN(
        const Metric metric,
        MakeMetric(name, model.losses[0], nodes_.values[nodes_.losses[0].value].shape));
    nodes_.losses[0].loss.accuracy =
        nodes_.losses[0].loss.accuracy || metric.type == MetricType::kAccuracy;
    nodes_.metrics.push_back(metric);
  }
  return absl::OkStatus();
}

absl::Status GraphBuilder::CheckEverythingIsUsed(const config::ModelSpec& model) const {
  std::vector<bool> used(nodes_.values.size(), false);
  for (const GraphLoss& loss : nodes_.losses) used[loss.value] = true;
  for (std::size_t n = nodes_.layers.size(); n-- > 0;) {
    if (!used[nodes_.layers[n].output])
      return LayerError(
          model.layers[n],
          "the output of this layer reaches no loss; remove the layer or use its output");
    for (const std::size_t input : nodes_.layers[n].inputs) used[input] = true;
    if (nodes_.layers[n].weights) used[*nodes_.layers[n].weights] = true;
  }
  for (std::size_t t = 0; t < nodes_.tables.size(); ++t) {
    if (nodes_.table_ids[t] == 0)
      return ModelError(
          absl::StrCat("table `", nodes_.tables[t].name, "`: no embedding layer reads it"));
  }
  for (std::size_t i = 0; i < nodes_.inputs.size(); ++i) {
    if (!used[i])
      return ModelError(absl::StrCat("input `", nodes_.values[i].name, "`: no layer reads it"));
  }
  return absl::OkStatus();
}

void GraphBuilder::ChooseTypes() {
  for (const GraphLoss& loss : nodes_.losses) {
    GraphStorage& storage = nodes_.StorageOf(loss.value);
    ++storage.consumers;
    storage.at_loss = true;
  }
  for (GraphLayer& node : nodes_.layers) {
    if (node.layer->StepKey(0)) node.key = nodes_.keys++;
    if (node.layer->is_view()) continue;
    GraphStorage& output = nodes_.StorageOf(node.output);
    const Computes computes = node.layer->computes();
    const bool wide = node.wide || computes == Computes::kFloat32 ||
                      (computes == Computes::kNarrow && output.at_loss);
    node.reads = wide ? Element::kFloat32 : nodes_.narrow;
    output.type = output.at_loss ? Element::kFloat32 : node.reads;
    for (const std::size_t input : node.inputs) {
      GraphStorage& storage = nodes_.StorageOf(input);
      ++storage.consumers;
      if (node.embedding == nullptr && storage.type != node.reads) storage.cast_wanted = true;
    }
  }
}

absl::StatusOr<GraphNodes> GraphBuilder::Build(const config::ModelSpec& model) && {
  if (model.inputs.empty()) return ModelError("a model needs at least one input: inputs=0");
  if (model.layers.empty()) return ModelError("a model needs at least one layer: layers=0");
  if (model.losses.empty()) return ModelError("a model needs a loss: losses=0");
  for (const config::InputSpec& input : model.inputs) EG_RETURN_IF_ERROR(AddInput(input));
  for (const config::TableSpec& table : model.tables) {
    if (table.dimension < 1)
      return ModelError(absl::StrCat("table `", table.name, "`: dimension must be at least 1"));
    nodes_.tables.push_back(table);
  }
  nodes_.table_ids.resize(nodes_.tables.size());
  for (const config::LayerSpec& layer : model.layers)
    EG_RETURN_IF_ERROR(AddLayer(layer, model.layers));
  for (const config::LossSpec& loss : model.losses) EG_RETURN_IF_ERROR(AddLoss(loss, model));
  EG_RETURN_IF_ERROR(AddMetrics(model));
  EG_RETURN_IF_ERROR(CheckEverythingIsUsed(model));
  ChooseTypes();
  return std::move(nodes_);
}

}  // namespace evergrad::worker

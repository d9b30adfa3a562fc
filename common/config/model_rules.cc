#include "common/config/model_rules.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/job_schema.h"
#include "common/data_formats/data_format.h"
#include "common/layers/layer_descriptor.h"
#include "common/layers/losses.h"
#include "common/layers/metrics.h"
#include "common/layers/named.h"

namespace evergrad::config {
namespace {

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// This class has one check per rule. The checks of layers run in the order of the file, because
// each layer may read the layers above it.
class ModelCheck {
 public:
  ModelCheck(const Node& root, Reader* reader, JobSpec* spec)
      : root_(root), reader_(*reader), spec_(*spec), model_(spec->model) {
    fields_known_ = spec->data.train && !spec->data.train->format.empty();
    if (fields_known_ && spec->data.train->format != "idx") {
      fields_.clear();
      for (const FieldSpec& field : spec->data.fields) fields_.push_back(field.name);
      label_fields_ = fields_;
    }
    for (const InputSpec& input : model_.inputs) inputs_.push_back(input.name);
    for (const TableSpec& table : model_.tables) tables_.push_back(table.name);
    for (const LayerSpec& layer : model_.layers) layers_.insert(layer.name);
    readable_ = inputs_;
  }

  void Run() {
    for (const InputSpec& input : model_.inputs) CheckInputNamesField(input);
    for (const TableSpec& table : model_.tables) CheckTable(table);
    const Node* const layers = At(root_, {"spec", "model", "layers"});
    for (std::size_t i = 0; i < model_.layers.size(); ++i) {
      const bool there = layers != nullptr && i < layers->items.size();
      CheckLayer(i, there ? &layers->items[i] : nullptr);
    }
    const Node* const losses = At(root_, {"spec", "model", "losses"});
    for (std::size_t i = 0; i < model_.losses.size(); ++i) {
      const Node* node = losses;
      if (losses != nullptr && losses->kind == Node::Kind::kSequence)
        node = i < losses->items.size() ? &losses->items[i] : nullptr;
      CheckLossNames(&model_.losses[i], node);
      for (const std::string& metric : model_.metrics) CheckMetricOfLoss(metric, model_.losses[i]);
    }
  }

 private:
  void CheckInputNamesField(const InputSpec& input) {
    if (!fields_known_ || Contains(fields_, input.name)) return;
    for (const YamlEntry& entry : At(root_, {"spec", "model", "inputs"})->entries)
      if (entry.key == input.name)
        reader_.Report(entry.where(),
                       absl::StrCat("model input `", input.name,
                                    "` is not a field of the data that a model can read: expected ",
                                    absl::StrJoin(fields_, ", "), Suggestion(input.name, fields_)));
  }

  void CheckTable(const TableSpec& table) {
    const Node* const node = At(root_, {"spec", "model", "tables"})->Find(table.name);
    const auto reads = [&](const LayerSpec& l) {
      return l.type == "embedding" && l.table == table.name;
    };
    // If a layer has an unknown type, that layer may be the one that reads the table.
    const bool unknown = std::any_of(model_.layers.begin(), model_.layers.end(),
                                     [](const LayerSpec& l) { return l.type.empty(); });
    if (!unknown && std::none_of(model_.layers.begin(), model_.layers.end(), reads))
      reader_.Report(table.where,
                     absl::StrCat("table `", table.name, "`: no embedding layer reads it"));
    if (table.admit_after <= 1 && table.default_row != 0 && node->Find("default_row") != nullptr)
      reader_.Report(
          node->Find("default_row")->where(),
          "`default_row` needs an `admit_after` above 1, because otherwise every id has a row");
  }

  void CheckLayer(std::size_t i, const Node* node) {
    LayerSpec& layer = model_.layers[i];
    FillInputs(i, node);
    const LayerDescriptor* const type = FindLayer(layer.type);
    if (type != nullptr) {
      CheckNumberOfInputs(*type, layer, node);
      if (layer.type == "embedding") CheckEmbedding(layer, node);
      for (const std::string& input : layer.inputs)
        CheckKind(layer, input, type->reads_ids ? ValueKind::kInteger : ValueKind::kReal,
                  KeyPlace(node, "input", layer.where));
    }
    CheckInputsAreAbove(layer, node);
    CheckName(layer, node);
  }

  void FillInputs(std::size_t i, const Node* node) {
    LayerSpec& layer = model_.layers[i];
    if (!layer.inputs.empty() || (node != nullptr && node->Find("input") != nullptr)) return;
    if (i > 0)
      layer.inputs = {model_.layers[i - 1].name};
    else if (model_.inputs.size() == 1)
      layer.inputs = {model_.inputs[0].name};
    else if (!model_.inputs.empty() && !layer.type.empty())
      reader_.Report(layer.where,
                     "the first layer needs `input`, because the model has several inputs");
  }

  void CheckNumberOfInputs(const LayerDescriptor& type, const LayerSpec& layer, const Node* node) {
    if (layer.inputs.empty() && type.inputs.min < 2) return;  // reported already
    if (const absl::Status count = CheckInputCount(type, layer.inputs.size()); !count.ok())
      reader_.Report(KeyPlace(node, "input", layer.where), std::string(count.message()));
  }

  void CheckEmbedding(const LayerSpec& layer, const Node* node) {
    for (const std::string& input : layer.inputs)
      if (!Contains(inputs_, input) && layers_.count(input) != 0)
        reader_.Report(KeyPlace(node, "input", layer.where),
                       absl::StrCat("an embedding reads ids, which only model inputs have: `",
                                    input, "` is a layer"));
    if (!Contains(tables_, layer.table))
      reader_.Report(KeyPlace(node, "table", layer.where),
                     absl::StrCat("no table `", layer.table.substr(0, 60), "` in model.tables",
                                  Suggestion(layer.table, tables_)));
    if (layer.weights.empty()) return;
    const Location weights = KeyPlace(node, "weights", layer.where);
    if (!Contains(inputs_, layer.weights))
      reader_.Report(weights, absl::StrCat("no model input `", layer.weights.substr(0, 60), "`",
                                           Suggestion(layer.weights, inputs_)));
    if (layer.combiner == "none")
      reader_.Report(weights, "`weights` need a combiner: sum, mean or sqrtn");
    CheckKind(layer, layer.weights, ValueKind::kReal, weights);
  }

  // Returns the kind of the values of the field: integers, which only embeddings read (as ids), or
  // real numbers, which all other layers read. Returns nullopt if the job does not state the kind.
  std::optional<ValueKind> KindOfInput(const std::string& input) const {
    if (!Contains(inputs_, input) || !fields_known_) return std::nullopt;
    const DataFormat* const format = FindDataFormat(spec_.data.train->format);
    if (format == nullptr) return std::nullopt;
    const auto field = std::find_if(spec_.data.fields.begin(), spec_.data.fields.end(),
                                    [&](const FieldSpec& f) { return f.name == input; });
    if (!format->own_fields.empty()) {  // the job file may omit fields that the format always has
      FieldSpec own;
      own.name = input;
      return format->kind(field == spec_.data.fields.end() ? own : *field);
    }
    if (field == spec_.data.fields.end() || field->type.empty()) return std::nullopt;
    return format->kind(*field);
  }

  void CheckKind(const LayerSpec& layer, const std::string& input, ValueKind wanted,
                 const Location& where) {
    const auto kind = KindOfInput(input);
    if (!kind || *kind == wanted) return;
    if (wanted == ValueKind::kInteger)
      return reader_.Report(where, absl::StrCat("an embedding reads ids, but the field `", input,
                                                "` has real numbers (float32): expected integers"));
    const std::string who = layer.type == "embedding"
                                ? "weights must be"
                                : absl::StrCat("a layer of type ", layer.type, " reads");
    reader_.Report(
        where,
        absl::StrCat(who, " real numbers, but the field `", input,
                     "` has integers; the transform `scale: 1` converts integers to real numbers"));
  }

  void CheckInputsAreAbove(const LayerSpec& layer, const Node* node) {
    // Without `input`, the layer reads the layer above it. A mistake in that layer has been
    // reported already.
    if (node == nullptr || node->Find("input") == nullptr) return;
    const Location where = KeyPlace(node, "input", layer.where);
    for (const std::string& input : layer.inputs) {
      if (input.empty() || Contains(readable_, input)) continue;
      if (input == layer.name)
        reader_.Report(where, absl::StrCat("layer `", layer.name, "` reads itself"));
      else if (layers_.count(input) != 0)
        reader_.Report(where, absl::StrCat("layer `", input,
                                           "` is below this layer: a layer reads layers above it"));
      else
        reader_.Report(where, absl::StrCat("no layer or model input `", input.substr(0, 60), "`",
                                           Suggestion(input, readable_)));
    }
  }

  void CheckName(const LayerSpec& layer, const Node* node) {
    if (layer.name.empty()) return;
    const Location where = KeyPlace(node, "name", layer.where);
    const auto [first, fresh] = lines_.emplace(layer.name, where.line);
    if (Contains(inputs_, layer.name))
      reader_.Report(where, absl::StrCat("layer `", layer.name, "` has the name of a model input"));
    else if (!fresh)
      reader_.Report(where, absl::StrCat("duplicate layer name `", layer.name,
                                         "`: first given on line ", first->second));
    else
      readable_.push_back(layer.name);
  }

  void CheckLossNames(LossSpec* loss, const Node* node) {
    if (loss->output.empty() && !model_.layers.empty()) loss->output = model_.layers.back().name;
    if (!loss->output.empty() && layers_.count(loss->output) == 0)
      reader_.Report(KeyPlace(node, "output", loss->where),
                     absl::StrCat("`output`: no layer `", loss->output.substr(0, 60), "`",
                                  Suggestion(loss->output, std::vector<std::string>(
                                                               layers_.begin(), layers_.end()))));
    if (fields_known_ && !Contains(label_fields_, loss->labels))
      reader_.Report(
          KeyPlace(node, "labels", loss->where),
          absl::StrCat("`labels`: no field `", loss->labels.substr(0, 60),
                       "` that can be a label: expected ", absl::StrJoin(label_fields_, ", "),
                       Suggestion(loss->labels, label_fields_)));
  }

  void CheckMetricOfLoss(const std::string& name, const LossSpec& spec) {
    const MetricDescriptor* const metric = FindBuilt(Metrics(), name);
    const LossDescriptor* const loss = FindBuilt(Losses(), spec.type);
    if (metric == nullptr || loss == nullptr || IsDefinedFor(*metric, loss->name)) return;
    const Node* const metrics = At(root_, {"spec", "model", "metrics"});
    const LossDescriptor* const wanted = FindBuilt(Losses(), metric->losses[0]);
    reader_.Report(metrics->where(),
                   wanted->has_classes && !loss->has_classes
                       ? absl::StrCat("the metric ", name,
                                      " needs a loss with classes, but the loss is ", loss->name)
                       : absl::StrCat("the metric ", name, " needs the loss ", wanted->name,
                                      ", but the loss is ", loss->name));
  }

  const Node& root_;
  Reader& reader_;
  JobSpec& spec_;
  ModelSpec& model_;
  bool fields_known_ = false;
  std::vector<std::string> fields_ = {"image"}, label_fields_ = {"label"};
  std::vector<std::string> inputs_, tables_;
  std::set<std::string> layers_;       // the names of all layers
  std::vector<std::string> readable_;  // inputs, and the layers above
  std::map<std::string, int> lines_;   // the line of the first layer of each name
};

}  // namespace

void CheckModel(const Node& root, Reader* reader, JobSpec* spec) {
  ModelCheck(root, reader, spec).Run();
}

}  // namespace evergrad::config

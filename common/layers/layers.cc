// The registry of layer types, and the keys of every layer: name, input, dtype.
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layers/families.h"
#include "common/schema/names.h"
#include "common/schema/reference_text.h"

namespace evergrad::config {
namespace {

// Types that are not built and belong to no family. Each family lists its own types that are not
// built.
const NotBuilt kLayersNotBuilt = {"lstm",           "gru",
                                  "conv1d",         "conv3d",
                                  "max_pooling1d",  "average_pooling2d",
                                  "reshape",        "global_max_pooling2d",
                                  "attention",      "multi_head_attention",
                                  "zero_padding2d", "depthwise_conv2d"};
const NotBuilt kLayerKeysNotBuilt = {"activity_regularizer", "kernel_constraint",
                                     "bias_constraint",      "trainable",
                                     "dilation_rate",        "groups",
                                     "data_format",          "noise_shape",
                                     "input_shape"};

Key<LayerSpec> NameKey() {
  return {"name",
          "letters, digits, _ - .",
          "unique name in the model. The names of the layer's variables begin with this name: "
          "NAME/kernel, NAME/bias",
          true,
          [](Reader& r, const Node& n, LayerSpec* t) {
            const auto v = r.Text(n, "name");
            if (!v) return;
            if (!IsPartName(*v))
              r.Report(n.where(), absl::StrCat("`name`: expected a letter, then letters, digits, "
                                               "`_`, `-` or `.`, at most ",
                                               kNameBytesMax, "; got ", n.Describe()));
            else
              t->name = *v;
          },
          [](const LayerSpec& t) { return std::optional<Node>(MakeText(t.name)); }};
}

Key<LayerSpec> InputKey() {
  return {"input",
          "name, or a list of names",
          "the layers or model inputs that the layer reads. If omitted, the layer reads the layer "
          "above",
          false,
          [](Reader& r, const Node& n, LayerSpec* t) {
            std::vector<const Node*> names;
            if (n.kind == Node::Kind::kSequence) {
              for (const Node& item : n.items) names.push_back(&item);
            } else {
              names.push_back(&n);
            }
            if (names.empty())
              r.Report(
                  n.where(),
                  "`input`: expected the name of a layer or of a model input, got an empty list");
            for (const Node* name : names)
              if (const auto v = r.Text(*name, "input")) t->inputs.push_back(*v);
          },
          [](const LayerSpec& t) {
            if (t.inputs.empty()) return std::optional<Node>();
            if (t.inputs.size() == 1) return std::optional<Node>(MakeText(t.inputs[0]));
            std::vector<Node> items;
            for (const std::string& input : t.inputs) items.push_back(MakeText(input));
            return std::optional<Node>(MakeList(std::move(items)));
          }};
}

Key<LayerSpec> DtypeKey() {
  Key<LayerSpec> key = Choice<LayerSpec>(
      "dtype", &LayerSpec::dtype, {"float32"},
      {"bfloat16", "float16", "float64", "mixed_bfloat16", "mixed_float16"}, "",
      "type of the layer's input, computation and output. The key has an effect only "
      "if training.precision is mixed_bfloat16 or mixed_float16");
  key.write = [](const LayerSpec& t) {
    return t.dtype.empty() ? std::nullopt : std::optional<Node>(MakeText(t.dtype));
  };
  key.default_text = "the type of training.precision";
  return key;
}

std::string WhatOf(const LayerDescriptor& layer) {
  return absl::StrCat(layer.article, " ", layer.type, " layer");
}

Variant<LayerSpec>::Case CaseOf(const LayerDescriptor& layer) {
  Table<LayerSpec> table{WhatOf(layer), {NameKey()}, kLayerKeysNotBuilt};
  table.keys.insert(table.keys.end(), layer.keys.begin(), layer.keys.end());
  table.keys.push_back(InputKey());
  table.not_built.insert(table.not_built.end(), layer.keys_not_built.begin(),
                         layer.keys_not_built.end());
  if (layer.is_view)
    table.not_built.push_back("dtype");
  else
    table.keys.push_back(DtypeKey());
  LayerSpec defaults;
  defaults.type = layer.type;
  return {layer.type, std::move(table), std::move(defaults)};
}

std::vector<LayerDescriptor> TypesOfFamilies(bool built) {
  std::vector<LayerDescriptor> all;
#define EVERGRAD_LAYER_FAMILY(name)              \
  for (LayerDescriptor & layer : name##Layers()) \
    if ((layer.infer != nullptr) == built) all.push_back(std::move(layer));
#include "common/layers/layer_families.inc"
#undef EVERGRAD_LAYER_FAMILY
  return all;
}

// Returns the keys of a layer with the values of its example.
std::string Explained(const LayerDescriptor& layer, const std::string& indent) {
  Variant<LayerSpec>::Case c = *LayerVariant().Find(layer.type);
  for (Key<LayerSpec>& key : c.table.keys)
    if (const auto found = layer.example.find(key.name); found != layer.example.end())
      key.example = found->second;
  std::string text;
  c.table.Explain(c.defaults, indent, &text);
  return text;
}

}  // namespace

const std::vector<LayerDescriptor>& Layers() {
  static const std::vector<LayerDescriptor> layers = TypesOfFamilies(true);
  return layers;
}

const LayerDescriptor* FindLayer(absl::string_view type) {
  for (const LayerDescriptor& layer : Layers())
    if (layer.type == type) return &layer;
  return nullptr;
}

std::vector<std::string> LayerTypes() {
  std::vector<std::string> types;
  for (const LayerDescriptor& layer : Layers()) types.push_back(layer.type);
  return types;
}

const Variant<LayerSpec>& LayerVariant() {
  static const Variant<LayerSpec> variant = [] {
    Variant<LayerSpec> v{"a layer", "type", &LayerSpec::type, {}, kLayersNotBuilt, ""};
    for (const LayerDescriptor& layer : TypesOfFamilies(false)) v.not_built.push_back(layer.type);
    for (const LayerDescriptor& layer : Layers()) v.cases.push_back(CaseOf(layer));
    return v;
  }();
  return variant;
}

void ExplainLayers(const std::string& indent, std::string* out) {
  std::map<int, const LayerDescriptor*> chain;
  for (const LayerDescriptor& layer : Layers())
    if (layer.reference_position > 0) chain[layer.reference_position] = &layer;
  for (const auto& [position, layer] : chain)
    absl::StrAppend(out, indent, "-\n", indent, "  # the kind of layer (one of ",
                    absl::StrJoin(LayerTypes(), ", "), "; required)\n", indent,
                    "  type: ", layer->type, "\n", Explained(*layer, indent + "  "));
  for (const LayerDescriptor& layer : Layers()) {
    if (layer.reference_position > 0) continue;
    AppendLines(absl::StrCat("-\n  type: ", layer.type, "\n", Explained(layer, "  ")),
                indent + "# ", out);
  }
}

absl::Status CheckInputCount(const LayerDescriptor& layer, std::size_t inputs) {
  if (inputs >= layer.inputs.min && inputs <= layer.inputs.max) return absl::OkStatus();
  const bool one = layer.inputs.min == 1;
  return absl::InvalidArgumentError(absl::StrCat(
      WhatOf(layer), " reads ", layer.inputs.max == InputCount::kAny ? "at least " : "",
      one ? "one input" : "two inputs", ", got ", inputs));
}

absl::StatusOr<LayerShapes> InferLayer(const LayerSpec& spec, const LayerInputs& inputs) {
  const LayerDescriptor* const layer = FindLayer(spec.type);
  if (layer == nullptr)
    return absl::InvalidArgumentError(absl::StrCat(
        "unknown type `", spec.type, "`; expected one of ", absl::StrJoin(LayerTypes(), ", ")));
  EG_RETURN_IF_ERROR(CheckInputCount(*layer, inputs.shapes.size()));
  return layer->infer(spec, inputs);
}

}  // namespace evergrad::config

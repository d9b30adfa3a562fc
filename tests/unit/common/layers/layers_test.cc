#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/layers/activations.h"
#include "common/layers/combiners.h"
#include "common/layers/initializers.h"
#include "common/layers/layer_descriptor.h"
#include "common/layers/losses.h"
#include "common/layers/metrics.h"
#include "common/layers/named.h"

namespace evergrad::config {
namespace {

using Shapes = std::vector<tensor::Shape>;

LayerSpec Spec(const std::string& type, const std::function<void(LayerSpec&)>& change = {}) {
  LayerSpec spec;
  spec.name = "l", spec.type = type;
  if (change) change(spec);
  return spec;
}

// Returns the shapes and variables that a layer has, as text, for example "(10) kernel(4, 10)^4/10
// bias(10)^10/10", or the error.
std::string Inferred(const LayerSpec& spec, const LayerInputs& inputs) {
  const auto shapes = InferLayer(spec, inputs);
  if (!shapes.ok()) return std::string(shapes.status().message());
  std::string text = shapes->output.ToString();
  for (const VariableSpec& v : shapes->variables) {
    absl::StrAppend(&text, " ", v.suffix, v.shape.ToString(), "^", v.fan_in, "/", v.fan_out, ":",
                    v.initializer.type);
    if (v.l2 != 0) absl::StrAppend(&text, " l2=", v.l2);
    if (v.momentum >= 0) absl::StrAppend(&text, " momentum=", v.momentum);
    if (v.of_products) absl::StrAppend(&text, " of_products");
  }
  return text;
}

struct ShapeCase {
  LayerSpec spec;
  LayerInputs inputs;
  std::string want;
};

LayerSpec Conv(std::uint64_t filters, std::uint64_t kernel, std::uint64_t stride,
               const std::string& padding) {
  return Spec("conv2d", [&](LayerSpec& s) {
    s.filters = filters, s.kernel_h = s.kernel_w = kernel, s.stride_h = s.stride_w = stride;
    s.padding = padding, s.use_bias = false;
  });
}
LayerSpec Pool(std::uint64_t pool, std::uint64_t stride, const std::string& padding) {
  return Spec("max_pooling2d", [&](LayerSpec& s) {
    s.pool_h = s.pool_w = pool, s.stride_h = s.stride_w = stride, s.padding = padding;
  });
}
LayerSpec Dense(std::uint64_t units) {
  return Spec("dense", [&](LayerSpec& s) { s.units = units, s.kernel_l2 = 0.5; });
}
LayerSpec Embedding(const std::string& combiner) {
  return Spec("embedding", [&](LayerSpec& s) { s.combiner = combiner; });
}

// Returns cases with shapes that the rules accept, and with the results.
std::vector<ShapeCase> Fitting() {
  return {
      {Dense(10),
       {{{4}}},
       "(10) kernel(4, 10)^4/10:glorot_uniform l2=0.5 of_products bias(10)^10/10:zeros"},
      {Dense(3),
       {{{2, 5, 4}}},
       "(2, 5, 3) kernel(4, 3)^4/3:glorot_uniform l2=0.5 of_products bias(3)^3/3:zeros"},
      {Conv(8, 3, 1, "valid"),
       {{{28, 27, 2}}},
       "(26, 25, 8) kernel(3, 3, 2, 8)^18/72:glorot_uniform of_products"},
      {Conv(8, 3, 2, "same"),
       {{{28, 27, 2}}},
       "(14, 14, 8) kernel(3, 3, 2, 8)^18/72:glorot_uniform of_products"},
      {Pool(2, 2, "valid"), {{{5, 4, 3}}}, "(2, 2, 3)"},
      {Pool(3, 2, "same"), {{{5, 4, 3}}}, "(3, 2, 3)"},
      {Spec("global_average_pooling2d"), {{{5, 4, 3}}}, "(3)"},
      {Spec("batch_normalization"),
       {{{5, 4, 3}}},
       "(5, 4, 3) gamma(3)^3/3:ones beta(3)^3/3:zeros moving_mean(3)^3/3:zeros momentum=0.99 "
       "moving_variance(3)^3/3:ones momentum=0.99"},
      {Spec("layer_normalization", [](LayerSpec& s) { s.scale = false, s.beta_l2 = 0.25; }),
       {{{7}}},
       "(7) beta(7)^7/7:zeros l2=0.25"},
      {Spec("flatten"), {{{5, 4, 3}}}, "(60)"},
      {Spec("flatten"), {{{}}}, "(1)"},
      {Spec("activation"), {{{5, 4}}}, "(5, 4)"},
      {Spec("dropout"), {{{5, 4}}}, "(5, 4)"},
      {Embedding("none"), {{{}}, {}, 6}, "(6)"},
      {Embedding("none"), {{{3}, {}}, {}, 6}, "(4, 6)"},
      {Embedding("mean"), {{{3}, {2}}, {}, 6}, "(6)"},
      {Embedding("sum"), {{{3}}, tensor::Shape{3}, 6}, "(6)"},
      {Spec("concatenate"), {{{2, 3}, {2, 4}}}, "(2, 7)"},
      {Spec("add"), {{{2, 3}, {2, 3}}}, "(2, 3)"},
      {Spec("dot"), {{{3}, {3}}}, "(1)"},
      {Spec("factorization_machine"), {{{5}, {3, 5}}}, "(1)"},
      {Spec("factorization_machine"), {{{2, 5}}}, "(1)"},
  };
}

// Returns cases with shapes and settings that are refused.
std::vector<ShapeCase> Refused() {
  return {
      {Dense(10), {{{}}}, "dense needs an input of rank 1 or more, got ()"},
      {Dense(0), {{{4}}}, "units must be at least 1: units=0"},
      {Dense(10), {{{4}, {4}}}, "a dense layer reads one input, got 2"},
      {Conv(8, 3, 1, "valid"),
       {{{784}}},
       "conv2d needs an input (height, width, channels), got (784)"},
      {Conv(8, 5, 1, "valid"),
       {{{28, 4, 1}}},
       "the kernel is larger than its input: kernel=5x5 input=(28, 4, 1)"},
      {Conv(0, 5, 1, "same"), {{{28, 4, 1}}}, "filters must be at least 1: filters=0"},
      {Conv(1, 1, 1, "full"), {{{2, 2, 1}}}, "unknown padding `full`; expected one of valid, same"},
      {Pool(2, 2, "valid"),
       {{{7}}},
       "max_pooling2d needs an input (height, width, channels), got (7)"},
      {Pool(4, 2, "valid"),
       {{{3, 9, 1}}},
       "the pool is larger than its input: pool=4x4 input=(3, 9, 1)"},
      {Pool(2, 0, "valid"), {{{3, 9, 1}}}, "strides must be at least 1: strides=0x0"},
      {Pool(0, 1, "valid"), {{{3, 9, 1}}}, "pool_size must be at least 1: pool_size=0x0"},
      {Spec("global_average_pooling2d"),
       {{{4}}},
       "global_average_pooling2d needs an input (height, width, channels), got (4)"},
      {Spec("batch_normalization"),
       {{{}}},
       "batch_normalization needs an input of rank 1 or more, got ()"},
      {Spec("batch_normalization", [](LayerSpec& s) { s.momentum = 1; }),
       {{{3}}},
       "momentum must be in [0, 1): momentum=1"},
      {Spec("layer_normalization"),
       {{{}}},
       "layer_normalization needs an input of rank 1 or more, got ()"},
      {Spec("activation", [](LayerSpec& s) { s.activation = "gelu"; }),
       {{{3}}},
       "unknown activation `gelu`; expected one of linear, relu, tanh, sigmoid, softmax"},
      {Spec("dropout", [](LayerSpec& s) { s.rate = 1; }),
       {{{3}}},
       "rate must be in [0, 1): rate=1"},
      {Embedding("none"), {{{2, 3}}, {}, 6}, "embedding needs ids of shape () or (n), got (2, 3)"},
      {Embedding("max"),
       {{{}}, {}, 6},
       "unknown combiner `max`; expected one of none, sum, mean, sqrtn"},
      {Embedding("sum"),
       {{{3}}, tensor::Shape{4}, 6},
       "weights need one input of ids with the shape of the weights: weights=(4) ids=(3)"},
      {Spec("concatenate"),
       {{{2, 3}, {3, 3}}},
       "concatenate needs inputs that agree in all axes but the last, got (2, 3), (3, 3)"},
      {Spec("concatenate"), {{{2}, {}}}, "concatenate needs inputs of rank 1 or more, got (2), ()"},
      {Spec("add"), {{{784}, {256}}}, "add needs inputs of the same shape, got (784), (256)"},
      {Spec("add"), {{{3}}}, "an add layer reads at least two inputs, got 1"},
      {Spec("dot"), {{{3}, {4}}}, "dot needs two vectors of the same size, got (3), (4)"},
      {Spec("dot"),
       {{{3, 1}, {3, 1}}},
       "dot needs two vectors of the same size, got (3, 1), (3, 1)"},
      {Spec("dot"), {{{3}, {3}, {3}}}, "a dot layer reads two inputs, got 3"},
      {Spec("factorization_machine"),
       {{{3}, {4}}},
       "factorization_machine needs vectors of the same size, as inputs (dimension) or (fields, "
       "dimension); got (3), (4)"},
      {Spec("factorization_machine"),
       {{{3}}},
       "factorization_machine needs at least two vectors per example, got (3)"},
      {Spec("factorization_machine"),
       {{{3}, {}}},
       "factorization_machine needs vectors of the same size, as inputs (dimension) or (fields, "
       "dimension); got (3), ()"},
  };
}

TEST_CASE("every shape rule gives the output and the variables that Keras gives") {
  std::set<ShapeRule> covered;
  for (const ShapeCase& c : Fitting()) {
    CHECK(Inferred(c.spec, c.inputs) == c.want);
    covered.insert(FindLayer(c.spec.type)->infer);
  }
  for (const LayerDescriptor& layer : Layers()) {
    INFO("this test has no shapes for the rule of the layer `" << layer.type << "`");
    CHECK(covered.count(layer.infer) == 1);
  }
}

TEST_CASE("every shape rule refuses wrong shapes, and every layer type a wrong number of inputs") {
  std::set<ShapeRule> covered = {FindLayer("flatten")->infer};  // it accepts every shape
  for (const ShapeCase& c : Refused()) {
    CHECK(Inferred(c.spec, c.inputs) == c.want);
    CHECK(InferLayer(c.spec, c.inputs).status().code() == absl::StatusCode::kInvalidArgument);
    covered.insert(FindLayer(c.spec.type)->infer);
  }
  for (const LayerDescriptor& layer : Layers()) {
    INFO("this test has no refusal for the rule of the layer `" << layer.type << "`");
    CHECK(covered.count(layer.infer) == 1);
    const std::size_t few = layer.inputs.min - 1, many = layer.inputs.max + 1;
    CHECK(CheckInputCount(layer, layer.inputs.min).ok());
    if (few > 0) CHECK_FALSE(CheckInputCount(layer, few).ok());
    if (layer.inputs.max != InputCount::kAny) CHECK_FALSE(CheckInputCount(layer, many).ok());
  }
  CHECK(Inferred(Spec("lstm"), {{{3}}}) ==
        absl::StrCat("unknown type `lstm`; expected one of ", absl::StrJoin(LayerTypes(), ", ")));
  CHECK(Inferred(Dense(1u << 24), {{{1024}}}) ==
        "its kernel has too many elements: shape=(1024, 16777216) elements=17179869184 "
        "limit=2147483647");
}

TEST_CASE("each layer type is registered once, with a rule and a valid example") {
  std::set<std::string> types;
  std::set<int> positions;
  for (const LayerDescriptor& layer : Layers()) {
    INFO(layer.type);
    CHECK(types.insert(layer.type).second);
    CHECK(FindLayer(layer.type) == &layer);
    CHECK(layer.infer != nullptr);
    CHECK_FALSE(layer.keras.empty());
    CHECK((layer.article == "a" || layer.article == "an"));
    if (layer.reference_position > 0) CHECK(positions.insert(layer.reference_position).second);
    const Table<LayerSpec>& table = LayerVariant().Find(layer.type)->table;
    const std::vector<std::string> keys = table.Names();
    for (const auto& [key, value] : layer.example) {
      INFO(key << ": " << value);
      CHECK(std::count(keys.begin(), keys.end(), key) == 1);
    }
    for (const Key<LayerSpec>& key : table.keys) {
      INFO(key.name);
      CHECK_FALSE(key.help.empty());
      CHECK(std::count(table.not_built.begin(), table.not_built.end(), key.name) == 0);
      if (key.required) CHECK((layer.example.count(key.name) == 1 || !key.example.empty()));
    }
  }
  for (const std::string& name : LayerVariant().not_built) {
    INFO("`" << name << "` is registered and on the list of layers that are not built");
    CHECK(types.count(name) == 0);
  }
}

TEST_CASE(
    "every name is unique in its table of activations, combiners, initializers, losses or "
    "metrics") {
  const auto check = [](const auto& table) {
    std::set<std::string> names;
    for (const auto& entry : table) {
      INFO(entry.name);
      CHECK(names.insert(entry.name).second);
    }
    CHECK(NamesOf(table, true).size() + NamesOf(table, false).size() == table.size());
  };
  check(Activations());
  check(Combiners());
  check(Initializers());
  check(Losses());
  check(Metrics());
  for (const MetricDescriptor& metric : Metrics())
    for (const std::string& loss : metric.losses) CHECK(FindBuilt(Losses(), loss) != nullptr);
}

TEST_CASE("all names stand for different computations, except the two names of accuracy") {
  const auto kinds = [](const auto& table) {
    std::map<int, std::vector<std::string>> names;
    for (const auto& entry : table)
      if (entry.built) names[static_cast<int>(entry.kind)].push_back(entry.name);
    return names;
  };
  for (const auto& [kind, names] : kinds(Losses())) CHECK(names.size() == 1);
  for (const auto& [kind, names] : kinds(Activations())) CHECK(names.size() == 1);
  for (const auto& [kind, names] : kinds(Combiners())) CHECK(names.size() == 1);
  for (const auto& [kind, names] : kinds(Metrics()))
    CHECK((names.size() == 1 || names == std::vector<std::string>{"accuracy", "binary_accuracy"}));
}

TEST_CASE("a loss accepts only outputs that fit its labels") {
  const auto checked = [](const std::string& type, const tensor::Shape& output,
                          const std::string& activation = "linear", bool from_logits = false) {
    LossSpec spec;
    spec.type = type, spec.output = "out", spec.from_logits = from_logits;
    return std::string(CheckLoss(spec, output, activation).message());
  };
  CHECK(checked("sparse_categorical_crossentropy", {2}).empty());
  CHECK(checked("sparse_categorical_crossentropy", {1}) ==
        "needs at least 2 classes in the last axis: output=`out` shape=(1)");
  CHECK(checked("sparse_categorical_crossentropy", {}) ==
        "needs at least 2 classes in the last axis: output=`out` shape=()");
  CHECK(checked("sparse_categorical_crossentropy", {3}, "sigmoid", true).empty());
  CHECK(checked("sparse_categorical_crossentropy", {3}, "softmax").empty());
  CHECK(checked("sparse_categorical_crossentropy", {3}, "softmax", true) ==
        "from_logits is set, but output `out` ends in softmax; remove the key or the activation");
  CHECK(checked("binary_crossentropy", {1}, "sigmoid", true) ==
        "from_logits is set, but output `out` ends in sigmoid; remove the key or the activation");
  CHECK(checked("mean_squared_error", {1}, "linear", true) ==
        "from_logits does not apply to this loss; remove the key");
  CHECK(checked("hinge", {1}) ==
        "unknown type; expected one of sparse_categorical_crossentropy, binary_crossentropy, "
        "mean_squared_error");
  const auto labels = [](const char* type, const tensor::Shape& output) {
    return LabelElements(*FindBuilt(Losses(), type), output);
  };
  CHECK(labels("sparse_categorical_crossentropy", {4, 5, 10}) == 20);
  CHECK(labels("sparse_categorical_crossentropy", {10}) == 1);
  CHECK(labels("binary_crossentropy", {4, 10}) == 40);
  CHECK(labels("mean_squared_error", {}) == 1);
}

}  // namespace
}  // namespace evergrad::config

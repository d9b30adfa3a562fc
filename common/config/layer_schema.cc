#include "common/config/job_schema.h"

namespace evergrad::config {
namespace {

const NotBuilt kLayersNotBuilt = {"lstm",
                                  "gru",
                                  "conv1d",
                                  "conv3d",
                                  "average_pooling2d",
                                  "global_max_pooling2d",
                                  "max_pooling1d",
                                  "multiply",
                                  "reshape",
                                  "attention",
                                  "multi_head_attention",
                                  "depthwise_conv2d",
                                  "zero_padding2d"};
const NotBuilt kActivationsNotBuilt = {"gelu",        "elu",          "selu",
                                       "swish",       "softplus",     "leaky_relu",
                                       "exponential", "hard_sigmoid", "softsign"};
const std::vector<std::string> kActivations = {"linear", "relu", "tanh", "sigmoid", "softmax"};
const std::vector<std::string> kInitializers = {"zeros", "ones", "glorot_uniform", "he_normal",
                                                "truncated_normal"};
const NotBuilt kInitializersNotBuilt = {"glorot_normal", "he_uniform",       "lecun_normal",
                                        "lecun_uniform", "random_normal",    "random_uniform",
                                        "orthogonal",    "variance_scaling", "identity"};
const NotBuilt kLayerKeysNotBuilt = {"activity_regularizer", "kernel_constraint",
                                     "bias_constraint",      "trainable",
                                     "dilation_rate",        "groups",
                                     "data_format",          "noise_shape",
                                     "input_shape"};

// `kernel_size: 3` or `kernel_size: [3, 5]`.
Key<LayerSpec> Pair(std::string name, std::uint64_t LayerSpec::*h, std::uint64_t LayerSpec::*w,
                    std::uint64_t max, std::string help) {
  return {name,
          absl::StrCat(IntegerType(1, max), ", or [height, width]"),
          std::move(help),
          false,
          [=](Reader& r, const Node& n, LayerSpec* t) {
            if (n.kind != Node::Kind::kSequence) {
              if (const auto v = r.Unsigned(n, name, 1, max)) t->*h = t->*w = *v;
              return;
            }
            if (n.items.size() != 2) {
              r.Report(n.where(),
                       absl::StrCat("`", name,
                                    "`: expected one integer or [height, width], got a list of ",
                                    n.items.size()));
              return;
            }
            const auto a = r.Unsigned(n.items[0], name, 1, max),
                       b = r.Unsigned(n.items[1], name, 1, max);
            if (a && b) t->*h = *a, t->*w = *b;
          },
          [=](const LayerSpec& t) {
            if (t.*h == 0) return std::optional<Node>();
            return std::optional<Node>(
                MakeList({MakePlain(absl::StrCat(t.*h)), MakePlain(absl::StrCat(t.*w))}));
          }};
}

Key<LayerSpec> LayerName() {
  Key<LayerSpec> key{
      "name",
      "letters, digits, _ - .",
      "unique in the model; the layer's variables are called name/kernel and name/bias",
      true,
      [](Reader& r, const Node& n, LayerSpec* t) {
        const auto v = r.Text(n, "name");
        if (!v) return;
        if (!IsPartName(*v))
          r.Report(n.where(),
                   absl::StrCat(
                       "`name`: expected a letter, then letters, digits, `_`, `-` or `.`, at most ",
                       kNameBytesMax, "; got ", n.Describe()));
        else
          t->name = *v;
      },
      [](const LayerSpec& t) { return std::optional<Node>(MakeText(t.name)); }};
  return key;
}

Key<LayerSpec> LayerInput() {
  return {"input",
          "name, or a list of names",
          "the layers or model inputs that it reads; left out: the layer above",
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

Key<LayerSpec> LayerDtype() {
  Key<LayerSpec> key = Choice<LayerSpec>(
      "dtype", &LayerSpec::dtype, {"float32"},
      {"bfloat16", "float16", "float64", "mixed_bfloat16", "mixed_float16"}, "",
      "of what it reads, computes and gives, where training.precision is a mixed one");
  key.write = [](const LayerSpec& t) {
    return t.dtype.empty() ? std::nullopt : std::optional<Node>(MakeText(t.dtype));
  };
  key.default_text = "as training.precision says";
  return key;
}

Key<LayerSpec> ActivationKey(std::string help) {
  return Choice<LayerSpec>("activation", &LayerSpec::activation, kActivations, kActivationsNotBuilt,
                           "", std::move(help));
}
Key<LayerSpec> PaddingKey() {
  return Choice<LayerSpec>("padding", &LayerSpec::padding, {"valid", "same"}, {"causal"}, "",
                           "`same` as TensorFlow does it: the output has ceil(size / stride)");
}

// `he_normal`, or `{type: constant, value: 0.5}`: a name alone is enough where there is nothing to
// add.
const Variant<InitializerSpec>& InitializerVariant() {
  static const Variant<InitializerSpec> variant = [] {
    Variant<InitializerSpec> v{"the initializer",     "type", &InitializerSpec::type, {},
                               kInitializersNotBuilt, ""};
    const NotBuilt keys_not_built = {"mean", "stddev", "seed", "scale"};
    for (const std::string& type : kInitializers) {
      InitializerSpec defaults;
      defaults.type = type;
      v.cases.push_back(
          {type, {absl::StrCat("the initializer ", type), {}, keys_not_built}, defaults});
    }
    v.cases.back().table = {
        "the initializer truncated_normal",
        {RealNumber<InitializerSpec>("stddev", &InitializerSpec::stddev, {0, 1e6, true, false},
                                     "before what lies beyond two of them is drawn again")},
        {"mean", "seed", "scale"}};
    v.cases.push_back(
        {"constant",
         {"the initializer constant",
          {Required(RealNumber<InitializerSpec>("value", &InitializerSpec::value,
                                                {-3e38, 3e38, false, false}, "of every element"),
                    "0.5")},
          keys_not_built},
         {"constant"}});
    return v;
  }();
  return variant;
}
Key<LayerSpec> InitializerKey(std::string name, InitializerSpec LayerSpec::*member,
                              std::string help) {
  return {
      name,
      InitializerType(),
      std::move(help),
      false,
      [=](Reader& r, const Node& n, LayerSpec* t) { ReadInitializer(r, n, name, &(t->*member)); },
      [=](const LayerSpec& t) { return std::optional<Node>(WriteInitializer(t.*member)); }};
}

std::vector<Key<LayerSpec>> WeightKeys() {
  return {
      ActivationKey("applied to the output"),
      Flag<LayerSpec>("use_bias", &LayerSpec::use_bias, "whether a bias is added"),
      InitializerKey("kernel_initializer", &LayerSpec::kernel_initializer,
                     "first values of the kernel, by Keras' formulas; keyed by the job's seed and "
                     "the variable's name"),
      InitializerKey("bias_initializer", &LayerSpec::bias_initializer, "first values of the bias"),
      RegularizerKey<LayerSpec>("kernel_regularizer", &LayerSpec::kernel_l2,
                                "l2 times the sum of the kernel's squares is added to the loss"),
      RegularizerKey<LayerSpec>("bias_regularizer", &LayerSpec::bias_l2, "the same of the bias")};
}

std::vector<Key<LayerSpec>> NormalizationKeys() {
  return {
      RealNumber<LayerSpec>("epsilon", &LayerSpec::epsilon, {0, 1, true, false},
                            "added to the variance"),
      Flag<LayerSpec>("center", &LayerSpec::center,
                      "whether an offset, beta, is learned and added"),
      Flag<LayerSpec>("scale", &LayerSpec::scale,
                      "whether a factor, gamma, is learned and multiplied"),
      InitializerKey("beta_initializer", &LayerSpec::beta_initializer, "first values of beta"),
      InitializerKey("gamma_initializer", &LayerSpec::gamma_initializer, "first values of gamma"),
      RegularizerKey<LayerSpec>("beta_regularizer", &LayerSpec::beta_l2,
                                "l2 times the sum of beta's squares is added to the loss"),
      RegularizerKey<LayerSpec>("gamma_regularizer", &LayerSpec::gamma_l2, "the same of gamma")};
}

Variant<LayerSpec>::Case LayerCase(std::string type, std::string what,
                                   std::vector<Key<LayerSpec>> own, LayerSpec defaults = {}) {
  Table<LayerSpec> table{std::move(what), {LayerName()}, kLayerKeysNotBuilt};
  for (Key<LayerSpec>& key : own) table.keys.push_back(std::move(key));
  table.keys.push_back(LayerInput());
  if (type == "flatten")  // computes nothing
    table.not_built.push_back("dtype");
  else
    table.keys.push_back(LayerDtype());
  defaults.type = type;
  return {std::move(type), std::move(table), std::move(defaults)};
}

std::vector<Key<LayerSpec>> With(std::vector<Key<LayerSpec>> keys,
                                 std::vector<Key<LayerSpec>> more) {
  for (Key<LayerSpec>& key : more) keys.push_back(std::move(key));
  return keys;
}

}  // namespace

std::string InitializerType() {
  return absl::StrCat("one of ", absl::StrJoin(kInitializers, ", "),
                      ", or {type: constant, value: 0.5}");
}

void ReadInitializer(Reader& reader, const Node& node, const std::string& key,
                     InitializerSpec* spec) {
  if (node.kind == Node::Kind::kMap) {
    InitializerVariant().Read(reader, node, spec);
  } else if (node.kind == Node::Kind::kScalar && node.text == "constant") {
    reader.Report(
        node.where(),
        absl::StrCat("`", key,
                     "`: `constant` needs its value: expected {type: constant, value: NUMBER}"));
  } else {
    Choice<InitializerSpec>(key, &InitializerSpec::type, kInitializers, kInitializersNotBuilt, "",
                            "")
        .read(reader, node, spec);
  }
}

Node WriteInitializer(const InitializerSpec& spec) {
  const bool plain = spec.type != "constant" && spec.stddev == InitializerSpec().stddev;
  return plain ? MakeText(spec.type) : InitializerVariant().Write(spec);
}

const Variant<LayerSpec>& LayerVariant() {
  static const Variant<LayerSpec> variant = [] {
    Variant<LayerSpec> v{"a layer", "type", &LayerSpec::type, {}, kLayersNotBuilt, ""};
    const Key<LayerSpec> strides = Pair("strides", &LayerSpec::stride_h, &LayerSpec::stride_w, 1024,
                                        "how far the window moves");
    Key<LayerSpec> pool_strides = strides;
    pool_strides.default_text = "the pool size";
    v.cases.push_back(LayerCase("dense", "a dense layer",
                                With({Required(Integer<LayerSpec>("units", &LayerSpec::units, 1,
                                                                  1u << 24, "size of the output"))},
                                     WeightKeys())));
    v.cases.push_back(
        LayerCase("conv2d", "a conv2d layer",
                  With({Required(Integer<LayerSpec>("filters", &LayerSpec::filters, 1, 1u << 16,
                                                    "channels of the output")),
                        Required(Pair("kernel_size", &LayerSpec::kernel_h, &LayerSpec::kernel_w,
                                      1024, "height and width of the window")),
                        strides, PaddingKey()},
                       WeightKeys())));
    v.cases.push_back(LayerCase("max_pooling2d", "a max_pooling2d layer",
                                {Pair("pool_size", &LayerSpec::pool_h, &LayerSpec::pool_w, 1024,
                                      "height and width of the window"),
                                 pool_strides, PaddingKey()}));
    v.cases.push_back(
        LayerCase("global_average_pooling2d", "a global_average_pooling2d layer", {}));
    v.cases.push_back(LayerCase(
        "batch_normalization", "a batch_normalization layer",
        With({RealNumber<LayerSpec>("momentum", &LayerSpec::momentum, {0, 1, false, true},
                                    "of the moving mean and variance that evaluation uses: each "
                                    "step of any worker moves them by 1 - momentum of the "
                                    "way to its batch's"),
              InitializerKey("moving_mean_initializer", &LayerSpec::moving_mean_initializer,
                             "first values of the moving mean"),
              InitializerKey("moving_variance_initializer", &LayerSpec::moving_variance_initializer,
                             "first values of the moving variance")},
             NormalizationKeys())));
    v.cases.push_back(
        LayerCase("layer_normalization", "a layer_normalization layer", NormalizationKeys()));
    v.cases.push_back(LayerCase("flatten", "a flatten layer", {}));
    v.cases.push_back(
        LayerCase("activation", "an activation layer", {Required(ActivationKey("the function"))}));
    v.cases.push_back(LayerCase(
        "dropout", "a dropout layer",
        {Required(RealNumber<LayerSpec>("rate", &LayerSpec::rate, {0, 1, false, true},
                                        "share of the inputs set to zero while training")),
         OptionalInteger<LayerSpec>("seed", &LayerSpec::seed, 0, kAny,
                                    "left out: from the job's seed and the layer's name")}));
    Key<LayerSpec> weights =
        PlainText<LayerSpec>("weights", &LayerSpec::weights, "of each id in its bag; left out: 1");
    weights.type = "name of a model input";
    v.cases.push_back(LayerCase(
        "embedding", "an embedding layer",
        {Required(PlainText<LayerSpec>("table", &LayerSpec::table,
                                       "of model.tables, where its settings are")),
         Choice<LayerSpec>("combiner", &LayerSpec::combiner, {"none", "sum", "mean", "sqrtn"},
                           {"max", "concat"}, "embedding.",
                           "what is made of the rows of an example's ids; none: [n, dimension], or "
                           "[dimension] of one id of shape []. A negative id is padding: "
                           "zeros, and no part of a bag"),
         weights}));
    v.cases.push_back(LayerCase("concatenate", "a concatenate layer", {}));
    v.cases.push_back(LayerCase("add", "an add layer", {}));
    v.cases.push_back(
        LayerCase("dot", "a dot layer",
                  {Flag<LayerSpec>("normalize", &LayerSpec::normalize,
                                   "divides both vectors by their length first: the cosine")}));
    v.cases.push_back(LayerCase("factorization_machine", "a factorization_machine layer", {}));
    for (auto& c : v.cases)
      if (c.type == "batch_normalization" || c.type == "layer_normalization")
        c.table.not_built.push_back("axis");
      else if (c.type == "global_average_pooling2d")
        c.table.not_built.push_back("keepdims");
    for (const char* type : {"concatenate", "dot"})
      for (auto& c : v.cases)
        if (c.type == type)
          c.table.not_built.push_back(std::string(type) == "dot" ? "axes" : "axis");
    return v;
  }();
  return variant;
}

}  // namespace evergrad::config

#include "common/config/job_schema.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/checked_math.h"
#include "common/fs/file.h"

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

template <class T>
Key<T> RegularizerKey(std::string name, double T::*member, std::string help) {
  return {name,
          "mapping {l2: number of at least 0}",
          std::move(help),
          false,
          [=](Reader& r, const Node& n, T* t) {
            static const RealBounds bounds{0, 1e6, false, false};
            struct Regularizer {
              double l2 = 0;
            };
            static const Table<Regularizer> table{
                "a regularizer",
                {Required(RealNumber<Regularizer>("l2", &Regularizer::l2, bounds, ""))},
                {"l1", "type"}};
            Regularizer regularizer;
            table.Read(r, n, &regularizer);
            t->*member = regularizer.l2;
          },
          [=](const T& t) {
            if (t.*member == 0) return std::optional<Node>();
            Node map;
            Append(&map, "l2", MakePlain(FormatReal(t.*member)));
            return std::optional<Node>(std::move(map));
          }};
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

// ---- model

Key<ModelSpec> InputsKey() {
  return {
      "inputs",
      "mapping of field name to {shape}",
      "what the model reads: fields of the data, with the shape of one example ([]: one number); "
      "what an embedding reads are ids",
      true,
      [](Reader& r, const Node& n, ModelSpec* t) {
        if (!r.IsMap(n, "model.inputs")) return;
        if (n.entries.empty())
          r.Report(n.where(), "model.inputs: expected at least one input, got none");
        if (n.entries.size() > kLayersMax)
          return r.Report(n.where(), absl::StrCat("too many model inputs: limit=", kLayersMax,
                                                  " got=", n.entries.size()));
        for (const Entry& entry : n.entries) {
          InputSpec input;
          input.name = entry.key;
          if (!IsPartName(entry.key)) {
            r.Report(entry.where(), absl::StrCat("name of a model input: expected a letter, then "
                                                 "letters, digits, `_`, `-` or `.`, got `",
                                                 entry.key.substr(0, 60), "`"));
            continue;
          }
          const Table<InputSpec> table{
              absl::StrCat("input ", entry.key),
              {Required(Key<InputSpec>{"shape", "list of up to 7 integers", "", false,
                                       [](Reader& rr, const Node& shape, InputSpec* out) {
                                         rr.Shape(shape, &out->shape);
                                       },
                                       [](const InputSpec&) { return std::optional<Node>(); }})},
              {"dtype", "sparse", "ragged"}};
          table.Read(r, entry.value, &input);
          input.where = entry.where();
          t->inputs.push_back(std::move(input));
        }
      },
      [](const ModelSpec& t) {
        if (t.inputs.empty()) return std::optional<Node>();
        Node map;
        for (const InputSpec& input : t.inputs) {
          Node inner;
          Append(&inner, "shape", MakeShape(input.shape));
          Append(&map, input.name, std::move(inner));
        }
        return std::optional<Node>(std::move(map));
      },
      "{image: {shape: [28, 28, 1]}}"};
}

Key<ModelSpec> LayersKey() {
  Key<ModelSpec> key{
      "layers",
      "list of layers",
      "in order: a layer reads layers above it; Keras names, weights and layouts",
      true,
      [](Reader& r, const Node& n, ModelSpec* t) {
        if (!r.IsList(n, "layers", "layers")) return;
        if (n.items.empty()) r.Report(n.where(), "`layers`: expected at least one layer, got none");
        if (n.items.size() > kLayersMax) {
          r.Report(n.where(),
                   absl::StrCat("too many layers: limit=", kLayersMax, " got=", n.items.size()));
          return;
        }
        for (const Node& item : n.items) {
          LayerSpec layer;
          LayerVariant().Read(
              r, item,
              &layer);  // of an unknown type: its name still counts, layers below may read it
          // Keras: a pool moves by its own size unless told otherwise.
          if (layer.type == "max_pooling2d" && item.Find("strides") == nullptr)
            layer.stride_h = layer.pool_h, layer.stride_w = layer.pool_w;
          layer.where = item.where();
          t->layers.push_back(std::move(layer));
        }
      },
      [](const ModelSpec& t) {
        std::vector<Node> items;
        for (const LayerSpec& layer : t.layers) items.push_back(LayerVariant().Write(layer));
        return items.empty() ? std::nullopt : std::optional<Node>(MakeList(std::move(items)));
      }};
  key.explain_inner = [](std::string* out, const std::string& indent) {
    // A chain that is a valid model and has each type once.
    const std::map<std::string, std::map<std::string, std::string>> examples = {
        {"conv2d",
         {{"name", "conv1"}, {"filters", "16"}, {"kernel_size", "3"}, {"input", "image"}}},
        {"batch_normalization", {{"name", "norm1"}, {"input", "conv1"}}},
        {"max_pooling2d", {{"name", "pool1"}, {"strides", "[2, 2]"}, {"input", "norm1"}}},
        {"flatten", {{"name", "flat"}, {"input", "pool1"}}},
        {"dense", {{"name", "hidden"}, {"units", "64"}, {"input", "flat"}}},
        {"layer_normalization", {{"name", "norm2"}, {"input", "hidden"}}},
        {"activation", {{"name", "act"}, {"activation", "relu"}, {"input", "norm2"}}},
        {"dropout", {{"name", "drop"}, {"rate", "0.2"}, {"input", "act"}}}};
    for (const char* type : {"conv2d", "batch_normalization", "max_pooling2d", "flatten", "dense",
                             "layer_normalization", "activation", "dropout"}) {
      Variant<LayerSpec>::Case c = *LayerVariant().Find(type);
      absl::StrAppend(out, indent, "-\n", indent, "  # the kind of layer (one of ",
                      absl::StrJoin(LayerVariant().Types(), ", "), "; required)\n", indent,
                      "  type: ", type, "\n");
      for (Key<LayerSpec>& k : c.table.keys)
        if (const auto found = examples.at(type).find(k.name); found != examples.at(type).end())
          k.example = found->second;
      c.table.Explain(c.defaults, indent + "  ", out);
    }
    // Those of ids and of several inputs, and a pooling of everything, would make no model of
    // images: shown, commented out.
    const std::map<std::string, std::map<std::string, std::string>> others = {
        {"global_average_pooling2d", {{"name", "pool2"}, {"input", "conv1"}}},
        {"embedding",
         {{"name", "user"},
          {"table", "users"},
          {"weights", "user_weights"},
          {"input", "[user_id]"}}},
        {"concatenate", {{"name", "features"}, {"input", "[user, item]"}}},
        {"add", {{"name", "sum"}, {"input", "[wide, deep]"}}},
        {"dot", {{"name", "score"}, {"input", "[user, item]"}}},
        {"factorization_machine", {{"name", "fm"}, {"input", "[user, item]"}}}};
    for (const char* type : {"global_average_pooling2d", "embedding", "concatenate", "add", "dot",
                             "factorization_machine"}) {
      Variant<LayerSpec>::Case c = *LayerVariant().Find(type);
      std::string text = absl::StrCat("-\n  type: ", type, "\n");
      for (Key<LayerSpec>& k : c.table.keys)
        if (const auto found = others.at(type).find(k.name); found != others.at(type).end())
          k.example = found->second;
      c.table.Explain(c.defaults, "  ", &text);
      const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
      for (const std::string& line : lines) absl::StrAppend(out, indent, "# ", line, "\n");
    }
    absl::StrAppend(out, indent, "- {name: logits, type: dense, units: 10, input: drop}\n");
  };
  return key;
}

Key<ModelSpec> LossesKey() {
  Key<ModelSpec> key{"losses",
                     "list of one mapping, or the mapping itself",
                     "what is minimised: its mean over the batch",
                     true,
                     [](Reader& r, const Node& n, ModelSpec* t) {
                       std::vector<const Node*> losses;
                       if (n.kind == Node::Kind::kSequence) {
                         for (const Node& item : n.items) losses.push_back(&item);
                         if (losses.empty())
                           r.Report(n.where(), "`losses`: expected one loss, got none");
                         if (losses.size() > 1)
                           r.Report(losses[1]->where(), "not built yet: more than one loss");
                       } else {
                         losses.push_back(&n);
                       }
                       for (const Node* node : losses) {
                         LossSpec loss;
                         if (!LossVariant().Read(r, *node, &loss) && loss.labels.empty())
                           loss.labels = "label";
                         loss.where = node->where();
                         t->losses.push_back(std::move(loss));
                       }
                     },
                     [](const ModelSpec& t) {
                       std::vector<Node> items;
                       for (const LossSpec& loss : t.losses)
                         items.push_back(LossVariant().Write(loss));
                       return items.empty() ? std::nullopt
                                            : std::optional<Node>(MakeList(std::move(items)));
                     }};
  key.explain_inner = [](std::string* out, const std::string& indent) {
    for (const auto& c : LossVariant().cases) {
      const bool first = &c == &LossVariant().cases.front();
      // One loss today: the other types are shown, commented out.
      std::string text;
      absl::StrAppend(&text, indent, "-\n", indent, "  # the kind of loss (one of ",
                      absl::StrJoin(LossVariant().Types(), ", "), "; required)\n", indent,
                      "  type: ", c.type, "\n");
      LossSpec defaults = c.defaults;
      defaults.output = "logits";
      c.table.Explain(defaults, indent + "  ", &text);
      if (first) {
        *out += text;
        continue;
      }
      const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
      for (const std::string& line : lines)
        absl::StrAppend(out, indent, "# ", line.substr(indent.size()), "\n");
    }
  };
  return key;
}

const std::vector<std::string> kMetrics = {"accuracy", "binary_accuracy", "auc",
                                           "root_mean_squared_error"};

const Table<TableSpec>& EmbeddingTableTable() {
  static const Table<TableSpec> table = [] {
    Key<TableSpec> initializer{
        "initializer",
        InitializerType(),
        "of a row's first values, a function of the job's seed, the table's name and the id",
        false,
        [](Reader& r, const Node& n, TableSpec* t) {
          ReadInitializer(r, n, "initializer", &t->initializer);
        },
        [](const TableSpec& t) { return std::optional<Node>(WriteInitializer(t.initializer)); }};
    return Table<TableSpec>{
        "an embedding table",
        {Required(
             Integer<TableSpec>(
                 "dimension", &TableSpec::dimension, 1, kRowFloatsMax,
                 absl::StrCat("elements of a row; with what the optimizer keeps of it at most ",
                              kRowFloatsMax)),
             "16"),
         initializer,
         RegularizerKey<TableSpec>("embeddings_regularizer", &TableSpec::l2,
                                   "l2 times the sum of the squares of the rows that a batch reads "
                                   "(each once) is added to the loss"),
         Integer<TableSpec>(
             "admit_after", &TableSpec::admit_after, 1, 1u << 30,
             "an id gets a row with this push to it; until then it reads default_row"),
         RealNumber<TableSpec>(
             "default_row", &TableSpec::default_row, {-3e38, 3e38, false, false},
             "each element of what an id reads that is not admitted yet; with admit_after above 1"),
         Integer<TableSpec>(
             "ttl_steps", &TableSpec::ttl_steps, 0, 1ull << 48,
             "a row that so many steps of the plan did not push to is dropped; 0: never"),
         ByteSize<TableSpec>(
             "bytes_max", &TableSpec::bytes_max, 0, 1ull << 50,
             "of its rows and index, on all servers together; 0: the servers' own limit alone"),
         Choice<TableSpec>("evict", &TableSpec::evict, {"none", "lru"}, {"lfu", "random"}, "table.",
                           "at the limit: rows that were not pushed to for longest give way, or "
                           "pushes are refused")},
        {"ttl", "optimizer", "dtype", "combiner", "partitions", "embeddings_initializer"}};
  }();
  return table;
}

Key<ModelSpec> TablesKey() {
  Key<ModelSpec> key{
      "tables",
      "mapping of table name to its settings",
      "embedding tables: rows by 64-bit id, made on first use; layers of type embedding name them, "
      "several may name one",
      false,
      [](Reader& r, const Node& n, ModelSpec* t) {
        if (!r.IsMap(n, "model.tables")) return;
        if (n.entries.size() > kTablesMax)
          return r.Report(n.where(), absl::StrCat("too many tables: limit=", kTablesMax,
                                                  " got=", n.entries.size()));
        for (const Entry& entry : n.entries) {
          const std::vector<absl::string_view> parts = absl::StrSplit(entry.key, '/');
          if (entry.key.size() > 2 * kNameBytesMax ||
              !std::all_of(parts.begin(), parts.end(), IsPartName)) {
            r.Report(entry.where(), absl::StrCat("name of a table: expected names of letters, "
                                                 "digits, `_`, `-` or `.` joined by `/`, got `",
                                                 entry.key.substr(0, 60), "`"));
            continue;
          }
          TableSpec table;
          table.name = entry.key;
          EmbeddingTableTable().Read(r, entry.value, &table);
          table.where = entry.where();
          t->tables.push_back(std::move(table));
        }
      },
      [](const ModelSpec& t) {
        if (t.tables.empty()) return std::optional<Node>();
        Node map;
        for (const TableSpec& table : t.tables) {
          Node inner;
          EmbeddingTableTable().Write(table, &inner);
          Append(&map, table.name, std::move(inner));
        }
        return std::optional<Node>(std::move(map));
      }};
  key.explain_inner = [](std::string* out, const std::string& indent) {
    std::string text = "users:\n";
    EmbeddingTableTable().Explain(TableSpec{}, "  ", &text);
    // An empty section is a mistake, and a table that no layer reads another.
    out->erase(out->rfind(indent.substr(2) + "tables:"));
    const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
    absl::StrAppend(out, indent.substr(2), "# tables:\n");
    for (const std::string& line : lines)
      absl::StrAppend(out, indent.substr(2), "#   ", line, "\n");
  };
  return key;
}

Key<ModelSpec> MetricsKey() {
  return {
      "metrics",
      absl::StrCat("list of: ", absl::StrJoin(kMetrics, ", ")),
      "measured at each evaluation; the mean loss always is",
      false,
      [](Reader& r, const Node& n, ModelSpec* t) {
        if (!r.IsList(n, "metrics", "names")) return;
        static const NotBuilt kMetricsNotBuilt = {
            "precision", "recall",  "mean_absolute_error", "mean_squared_error", "top_k_accuracy",
            "f1",        "log_loss"};
        for (const Node& item : n.items) {
          const auto v = r.Text(item, "metrics");
          if (!v) continue;
          if (std::find(kMetricsNotBuilt.begin(), kMetricsNotBuilt.end(), *v) !=
              kMetricsNotBuilt.end())
            r.Report(item.where(), absl::StrCat("not built yet: metric `", *v, "`"));
          else if (std::find(kMetrics.begin(), kMetrics.end(), *v) == kMetrics.end())
            r.Report(item.where(),
                     absl::StrCat("`metrics`: expected one of ", absl::StrJoin(kMetrics, ", "),
                                  ", got ", item.Describe(),
                                  *v == "rmse" ? "; did you mean `root_mean_squared_error`?"
                                               : Suggestion(*v, kMetrics)));
          else if (std::find(t->metrics.begin(), t->metrics.end(), *v) != t->metrics.end())
            r.Report(item.where(), absl::StrCat("`metrics`: ", *v, " is given twice"));
          else
            t->metrics.push_back(*v);
        }
      },
      [](const ModelSpec& t) {
        std::vector<Node> items;
        for (const std::string& metric : t.metrics) items.push_back(MakeText(metric));
        return std::optional<Node>(MakeList(std::move(items)));
      },
      "[accuracy]"};
}

// ---- training

Key<TrainingSpec> EvaluateKey() {
  return {
      "evaluate_every",
      "N epochs, or end",
      "evaluate on data.eval after every N-th epoch and at the end",
      false,
      [](Reader& r, const Node& n, TrainingSpec* t) {
        const auto v = r.Text(n, "evaluate_every");
        if (!v) return;
        if (*v == "end") {
          t->evaluate_every_epochs = 0;
          return;
        }
        const std::vector<std::string> parts = absl::StrSplit(*v, ' ', absl::SkipEmpty());
        const auto number =
            parts.empty() ? absl::InvalidArgumentError("") : ParseUnsigned(parts[0], 1, 1000000);
        if (parts.size() == 2 && (parts[1] == "step" || parts[1] == "steps" ||
                                  parts[1] == "closures" || parts[1] == "minutes")) {
          r.Report(n.where(), absl::StrCat("not built yet: evaluate_every in ", parts[1]));
        } else if (parts.size() != 2 || !number.ok() ||
                   (parts[1] != "epoch" && parts[1] != "epochs")) {
          r.Report(n.where(),
                   absl::StrCat("`evaluate_every`: expected `1 epoch`, `3 epochs` or `end`, got ",
                                n.Describe()));
        } else {
          t->evaluate_every_epochs = static_cast<std::uint32_t>(*number);
        }
      },
      [](const TrainingSpec& t) {
        if (t.evaluate_every_epochs == 0) return std::optional<Node>(MakeText("end"));
        return std::optional<Node>(MakePlain(absl::StrCat(
            t.evaluate_every_epochs, t.evaluate_every_epochs == 1 ? " epoch" : " epochs")));
      }};
}

const std::vector<std::string> kWireTypes = {"float32", "bf16", "fp16"};

void ReadWireType(Reader& r, const Node& n, absl::string_view key, std::string* type) {
  const auto v = r.Text(n, key);
  if (!v) return;
  if (std::find(kWireTypes.begin(), kWireTypes.end(), *v) != kWireTypes.end()) {
    *type = *v;
    return;
  }
  const std::string meant = *v == "bfloat16"                  ? "bf16"
                            : *v == "float16" || *v == "half" ? "fp16"
                            : *v == "fp32"                    ? "float32"
                                                              : "";
  r.Report(n.where(), absl::StrCat("`", key, "`: expected one of ", absl::StrJoin(kWireTypes, ", "),
                                   ", got ", n.Describe(),
                                   meant.empty() ? Suggestion(*v, kWireTypes)
                                                 : absl::StrCat("; did you mean `", meant, "`?")));
}

const Table<WireRule>& WireRuleTable() {
  static const Table<WireRule> table = [] {
    Key<WireRule> match = PlainText<WireRule>("match", &WireRule::match, "", "\"emb/*\"");
    match.read = [](Reader& r, const Node& n, WireRule* t) {
      const auto text = r.Text(n, "match");
      if (text && text->empty())
        r.Report(n.where(), "`match`: expected a pattern like `emb/*`, got nothing");
      if (text) t->match = *text;
    };
    Key<WireRule> dtype{
        "dtype",
        absl::StrCat("one of ", absl::StrJoin(kWireTypes, ", ")),
        "",
        true,
        [](Reader& r, const Node& n, WireRule* t) { ReadWireType(r, n, "dtype", &t->dtype); },
        [](const WireRule& t) { return std::optional<Node>(MakePlain(t.dtype)); }};
    return Table<WireRule>{"an entry of `wire_dtype`", {match, dtype}, {}};
  }();
  return table;
}

Key<TrainingSpec> WireTypeKey() {
  return {"wire_dtype",
          absl::StrCat("one of ", absl::StrJoin(kWireTypes, ", "), ", or list of {match, dtype}"),
          "what gradients and values are on their way between workers and servers; servers keep "
          "and compute float32. In a list, of each variable "
          "(dense1/kernel) and table the first entry whose `match` fits its name (`*`: any text, "
          "`?`: any character), float32 where none does",
          false,
          [](Reader& r, const Node& n, TrainingSpec* t) {
            if (n.kind != Node::Kind::kSequence) {
              std::string type = "float32";
              ReadWireType(r, n, "wire_dtype", &type);
              if (type != "float32") t->wire.push_back({"", type});
              return;
            }
            if (n.items.empty())
              r.Report(n.where(), "`wire_dtype`: expected at least one entry, got none");
            if (n.items.size() > 256)
              return r.Report(
                  n.where(),
                  absl::StrCat("too many entries of `wire_dtype`: limit=256 got=", n.items.size()));
            for (std::size_t i = 0; i < n.items.size(); ++i) {
              WireRuleTable().Read(r, n.items[i], &t->wire.emplace_back());
              if (t->wire.back().match.empty() && i + 1 < n.items.size() &&
                  n.items[i].Find("match") == nullptr)
                r.Report(n.items[i].where(),
                         "an entry without `match` fits everything: those below it are never used");
            }
            if (t->wire.size() == 1 && t->wire[0] == WireRule{"", "float32"}) t->wire.clear();
          },
          [](const TrainingSpec& t) {
            if (t.wire.empty()) return std::optional<Node>(MakePlain("float32"));
            if (t.wire.size() == 1 && t.wire[0].match.empty())
              return std::optional<Node>(MakePlain(t.wire[0].dtype));
            std::vector<Node> items;
            for (const WireRule& rule : t.wire) WireRuleTable().Write(rule, &items.emplace_back());
            return std::optional<Node>(MakeList(std::move(items)));
          }};
}

const NotBuilt kModesNotBuilt = {"sync", "bounded", "allreduce", "local"};
const NotBuilt kSpecKeysNotBuilt = {"predict", "export",     "early_stopping", "callbacks",
                                    "tables",  "embeddings", "closures",       "resources"};

Key<JobSpec> TypeKey() {
  return {"type",
          "one of training, functions, counting",
          "what the job is; functions and counting: see the end of this file",
          false,
          [](Reader&, const Node&, JobSpec*) {},  // read before, for it decides which table this is
          [](const JobSpec& t) { return std::optional<Node>(MakeText(t.type)); }};
}
Key<JobSpec> OptimizerKey() {
  Key<JobSpec> key{
      "optimizer",
      "mapping",
      "applied on the shards; formulas and defaults of Keras 2.9",
      false,
      [](Reader& r, const Node& n, JobSpec* t) { OptimizerVariant().Read(r, n, &t->optimizer); },
      [](const JobSpec& t) {
        return t.optimizers.empty() ? std::optional<Node>(OptimizerVariant().Write(t.optimizer))
                                    : std::nullopt;
      }};
  key.needed = "required, unless `optimizers` stands in for it";
  key.explain_inner = [](std::string* out, const std::string& indent) {
    for (const auto& c : OptimizerVariant().cases) {
      std::string text;
      absl::StrAppend(&text, indent, "# the formula (one of ",
                      absl::StrJoin(OptimizerVariant().Types(), ", "), "; required)\n", indent,
                      "type: ", c.type, "\n");
      c.table.Explain(c.defaults, indent, &text);
      if (c.type == "adam") {
        *out += text;
        continue;
      }
      absl::StrAppend(out, indent, "# or\n");
      const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
      for (const std::string& line : lines)
        absl::StrAppend(out, indent, "#   ", line.substr(indent.size()), "\n");
    }
  };
  return key;
}

// OptimizerVariant with `match` in front of each type's keys.
const Variant<OptimizerSpec>& RuleVariant() {
  static const Variant<OptimizerSpec> variant = [] {
    Variant<OptimizerSpec> v = OptimizerVariant();
    v.what = "an entry of `optimizers`";
    Key<OptimizerSpec> match =
        PlainText<OptimizerSpec>("match", &OptimizerSpec::match, "", "\"emb/*\"");
    match.read = [](Reader& r, const Node& n, OptimizerSpec* t) {
      const auto text = r.Text(n, "match");
      if (text && text->empty())
        r.Report(n.where(), "`match`: expected a pattern like `emb/*`, got nothing");
      if (text) t->match = *text;
    };
    for (auto& c : v.cases) {
      c.table.keys.insert(c.table.keys.begin(), match);
      std::erase(c.table.not_built, "match");
    }
    return v;
  }();
  return variant;
}

Key<JobSpec> OptimizersKey() {
  return {"optimizers",
          "list of {match, type, ...}",
          "instead of `optimizer`: of each variable (dense1/kernel) and table the first whose "
          "`match` fits its name (`*`: any text, `?`: any "
          "character); an entry "
          "without `match` fits all, and is the last",
          false,
          [](Reader& r, const Node& n, JobSpec* t) {
            if (!r.IsList(n, "optimizers", "optimizers")) return;
            t->optimizers_where = n.where();
            if (n.items.empty())
              r.Report(n.where(), "`optimizers`: expected at least one, got none");
            if (n.items.size() > 256)
              return r.Report(n.where(),
                              absl::StrCat("too many optimizers: limit=256 got=", n.items.size()));
            for (std::size_t i = 0; i < n.items.size(); ++i) {
              OptimizerSpec& optimizer = t->optimizers.emplace_back();
              if (!RuleVariant().Read(r, n.items[i], &optimizer)) continue;
              CheckOptimizer(r, n.items[i], optimizer);
              if (optimizer.match.empty() && i + 1 < n.items.size() &&
                  n.items[i].Find("match") == nullptr)
                r.Report(n.items[i].where(),
                         "an entry without `match` fits everything: those below it are never used");
            }
          },
          [](const JobSpec& t) {
            std::vector<Node> items;
            for (const OptimizerSpec& optimizer : t.optimizers)
              items.push_back(RuleVariant().Write(optimizer));
            return items.empty() ? std::nullopt : std::optional<Node>(MakeList(std::move(items)));
          }};
}

constexpr std::chrono::milliseconds kEveryMin{10}, kEveryMax{24 * 3600 * 1000};

Key<CheckpointSpec> EveryKey() {
  return {
      "every",
      absl::StrCat("duration from ", FormatDuration(kEveryMin), " to ", FormatDuration(kEveryMax)),
      "a lost server costs about half of it, of the whole job's work",
      false,
      [](Reader& r, const Node& n, CheckpointSpec* t) {
        const auto text = r.Text(n, "every");
        if (!text) return;
        const auto every = ParseDuration(*text);
        if (!every.ok())
          r.Report(n.where(), absl::StrCat("`every`: ", every.status().message()));
        else if (*every < kEveryMin || *every > kEveryMax)
          r.Report(n.where(),
                   absl::StrCat("`every`: expected a duration from ", FormatDuration(kEveryMin),
                                " to ", FormatDuration(kEveryMax), ", got ", n.Describe()));
        else
          t->every = *every;
      },
      [](const CheckpointSpec& t) {
        return std::optional<Node>(MakePlain(FormatDuration(t.every)));
      }};
}
Key<CheckpointSpec> DirectoryKey() {
  Key<CheckpointSpec> key =
      PlainText<CheckpointSpec>("directory", &CheckpointSpec::directory,
                                "shared by all daemons; each job gets its NAME-JOB_UID there. Left "
                                "out: checkpoint/ in its runs folder");
  key.type = "path or file:// URI";
  key.read = [](Reader& r, const Node& n, CheckpointSpec* t) {
    const auto text = r.Text(n, "directory");
    if (!text) return;
    const auto path = fs::LocalPath(*text);
    if (text->empty())
      r.Report(n.where(), "`directory`: expected a folder, got an empty text");
    else if (!path.ok())
      r.Report(n.where(), absl::StrCat("`directory`: ", path.status().message()));
    else
      t->directory = *text;
  };
  key.write = [](const CheckpointSpec& t) {
    return t.directory.empty()
               ? std::nullopt
               : std::optional<Node>(MakeText(absl::StrReplaceAll(t.directory, {{"${", "$${"}})));
  };
  return key;
}
Key<JobSpec> CheckpointKey() {
  Key<JobSpec> key =
      Section<JobSpec, CheckpointSpec>("checkpoint", &JobSpec::checkpoint, &CheckpointTable(),
                                       "how the job is saved; without the section as here, but a "
                                       "job that cannot be saved then goes on and says so");
  key.type = "mapping, or off";
  key.read = [](Reader& r, const Node& n, JobSpec* t) {
    t->checkpoint.given = true;
    if (n.kind == Node::Kind::kScalar) {
      if (!n.quoted && n.text == "off")
        t->checkpoint.on = false;
      else
        r.Report(n.where(),
                 absl::StrCat("`checkpoint`: expected a mapping or off, got ", n.Describe(),
                              n.text == "false" || n.text == "no" ? "; did you mean `off`?" : ""));
      return;
    }
    CheckpointTable().Read(r, n, &t->checkpoint);
  };
  key.write = [write = key.write](const JobSpec& t) {
    if (!t.checkpoint.given) return std::optional<Node>();
    return t.checkpoint.on ? write(t) : std::optional<Node>(MakePlain("off"));
  };
  return key;
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

void CheckOptimizer(Reader& reader, const Node& node, const OptimizerSpec& spec) {
  if (const Node* nesterov = node.Find("nesterov");
      nesterov != nullptr && spec.nesterov && spec.momentum == 0)
    reader.Report(nesterov->where(), "`nesterov: true` needs a momentum above 0");
}

bool IsDnsLabel(absl::string_view name) {
  if (name.empty() || name.size() > 63 || name.front() == '-' || name.back() == '-') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) ||
           absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '-';
  });
}

bool IsPartName(absl::string_view name) {
  if (name.empty() || name.size() > kNameBytesMax ||
      !(absl::ascii_isalpha(static_cast<unsigned char>(name[0])) || name[0] == '_'))
    return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
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

const Variant<LossSpec>& LossVariant() {
  static const Variant<LossSpec> variant = [] {
    Variant<LossSpec> v{"a loss",
                        "type",
                        &LossSpec::type,
                        {},
                        {"categorical_crossentropy", "hinge", "huber", "mean_absolute_error",
                         "kl_divergence", "cosine_similarity", "poisson", "sampled_softmax"},
                        ""};
    auto add = [&](std::string type, bool logits) {
      Table<LossSpec> table{
          absl::StrCat("the loss ", type),
          {},
          {"weight", "label_smoothing", "reduction", "class_weight", "ignore_class"}};
      if (logits)
        table.keys.push_back(
            Flag<LossSpec>("from_logits", &LossSpec::from_logits,
                           "whether the output is logits rather than probabilities"));
      Key<LossSpec> output = PlainText<LossSpec>("output", &LossSpec::output,
                                                 "the layer that it reads; left out: the last");
      output.type = "name of a layer";
      Key<LossSpec> labels = PlainText<LossSpec>("labels", &LossSpec::labels,
                                                 "the field of the data that it compares with");
      labels.type = "name of a field";
      table.keys.push_back(output);
      table.keys.push_back(labels);
      LossSpec defaults;
      defaults.type = type;
      defaults.labels = "label";
      v.cases.push_back({type, table, defaults});
    };
    add("sparse_categorical_crossentropy", true);
    add("binary_crossentropy", true);
    add("mean_squared_error", false);
    return v;
  }();
  return variant;
}

const Variant<OptimizerSpec>& OptimizerVariant() {
  static const Variant<OptimizerSpec> variant = [] {
    Variant<OptimizerSpec> v{"the optimizer",
                             "type",
                             &OptimizerSpec::type,
                             {},
                             {"adadelta", "adamax", "nadam", "lamb", "lars", "lion"},
                             ""};
    Key<OptimizerSpec> rate = RealNumber<OptimizerSpec>(
        "learning_rate", &OptimizerSpec::learning_rate, {0, 1e6, true, false}, "size of a step");
    const auto read_number = rate.read;
    rate.read = [read_number](Reader& r, const Node& n, OptimizerSpec* t) {
      if (n.kind == Node::Kind::kMap)
        r.Report(n.where(), "not built yet: learning-rate schedules; expected a number");
      else
        read_number(r, n, t);
    };
    const NotBuilt keys_not_built = {"clipnorm",
                                     "clipvalue",
                                     "global_clipnorm",
                                     "weight_decay",
                                     "decay",
                                     "amsgrad",
                                     "schedule",
                                     "use_ema",
                                     "match",
                                     "centered",
                                     "l2_shrinkage_regularization_strength"};
    OptimizerSpec adam;
    adam.type = "adam";
    adam.learning_rate = 0.001;
    v.cases.push_back(
        {"adam",
         {"the optimizer adam",
          {rate,
           RealNumber<OptimizerSpec>("beta_1", &OptimizerSpec::beta_1, {0, 1, false, true},
                                     "decay of the first moment"),
           RealNumber<OptimizerSpec>("beta_2", &OptimizerSpec::beta_2, {0, 1, false, true},
                                     "decay of the second moment"),
           RealNumber<OptimizerSpec>("epsilon", &OptimizerSpec::epsilon, {0, 1, true, false},
                                     "keeps the divisor from zero")},
          keys_not_built},
         adam});
    OptimizerSpec sgd;
    v.cases.push_back({"sgd",
                       {"the optimizer sgd",
                        {rate,
                         RealNumber<OptimizerSpec>("momentum", &OptimizerSpec::momentum,
                                                   {0, 1, false, false}, "0: none"),
                         Flag<OptimizerSpec>("nesterov", &OptimizerSpec::nesterov,
                                             "Nesterov's momentum; needs a momentum above 0")},
                        keys_not_built},
                       sgd});
    const Key<OptimizerSpec> beta_1 = RealNumber<OptimizerSpec>(
        "beta_1", &OptimizerSpec::beta_1, {0, 1, false, true}, "decay of the first moment");
    const Key<OptimizerSpec> beta_2 = RealNumber<OptimizerSpec>(
        "beta_2", &OptimizerSpec::beta_2, {0, 1, false, true}, "decay of the second moment");
    const Key<OptimizerSpec> epsilon = RealNumber<OptimizerSpec>(
        "epsilon", &OptimizerSpec::epsilon, {0, 1, true, false}, "keeps the divisor from zero");
    const Key<OptimizerSpec> accumulator = RealNumber<OptimizerSpec>(
        "initial_accumulator_value", &OptimizerSpec::initial_accumulator_value,
        {0, 1e6, false, false}, "of the sum of squares");
    OptimizerSpec adamw = adam;
    adamw.type = "adamw";
    NotBuilt adamw_not_built = keys_not_built;
    std::erase(adamw_not_built, "weight_decay");
    v.cases.push_back({"adamw",
                       {"the optimizer adamw",
                        {rate, beta_1, beta_2, epsilon,
                         RealNumber<OptimizerSpec>(
                             "weight_decay", &OptimizerSpec::weight_decay, {0, 1e6, false, false},
                             "times the learning rate, taken off each weight")},
                        adamw_not_built},
                       adamw});
    for (const char* type : {"adagrad", "rowwise_adagrad"}) {
      OptimizerSpec defaults;
      defaults.type = type;
      defaults.learning_rate = 0.001;
      v.cases.push_back(
          {type,
           {absl::StrCat("the optimizer ", type), {rate, accumulator, epsilon}, keys_not_built},
           defaults});
    }
    OptimizerSpec rmsprop;
    rmsprop.type = "rmsprop";
    rmsprop.learning_rate = 0.001;
    v.cases.push_back({"rmsprop",
                       {"the optimizer rmsprop",
                        {rate,
                         RealNumber<OptimizerSpec>("rho", &OptimizerSpec::rho, {0, 1, false, true},
                                                   "decay of the mean square"),
                         RealNumber<OptimizerSpec>("momentum", &OptimizerSpec::momentum,
                                                   {0, 1, false, true}, "0: none"),
                         epsilon},
                        keys_not_built},
                       rmsprop});
    OptimizerSpec ftrl;
    ftrl.type = "ftrl";
    ftrl.learning_rate = 0.001;
    const RealBounds strength{0, 1e6, false, false};
    v.cases.push_back(
        {"ftrl",
         {"the optimizer ftrl",
          {rate,
           RealNumber<OptimizerSpec>("learning_rate_power", &OptimizerSpec::learning_rate_power,
                                     {-10, 0, false, false}, "0: a fixed rate"),
           accumulator,
           RealNumber<OptimizerSpec>("l1_regularization_strength",
                                     &OptimizerSpec::l1_regularization_strength, strength,
                                     "drives weights to zero"),
           RealNumber<OptimizerSpec>("l2_regularization_strength",
                                     &OptimizerSpec::l2_regularization_strength, strength,
                                     "shrinks weights"),
           RealNumber<OptimizerSpec>("beta", &OptimizerSpec::beta, strength,
                                     "added to the root of the accumulator")},
          keys_not_built},
         ftrl});
    return v;
  }();
  return variant;
}

const Variant<PartitionerSpec>& PartitionerVariant() {
  static const Variant<PartitionerSpec> variant = [] {
    Variant<PartitionerSpec> v{"the partitioner", "type", &PartitionerSpec::type, {}, {"hash"}, ""};
    const Key<PartitionerSpec> cap = OptionalInteger<PartitionerSpec>(
        "max_shards", &PartitionerSpec::max_shards, 1, 1u << 20, "at most so many of one variable");
    PartitionerSpec defaults;
    v.cases.push_back(
        {"min_size",
         {"the partitioner min_size",
          {ByteSize<PartitionerSpec>("min_shard_bytes", &PartitionerSpec::min_shard_bytes, 1,
                                     1ull << 40, "no shard is smaller unless the variable is"),
           cap},
          {}},
         defaults});
    defaults.type = "max_size";
    defaults.max_shard_bytes = 0;
    v.cases.push_back({"max_size",
                       {"the partitioner max_size",
                        {Required(ByteSize<PartitionerSpec>(
                                      "max_shard_bytes", &PartitionerSpec::max_shard_bytes, 1,
                                      1ull << 40, "no shard is larger unless one row is"),
                                  "1MiB"),
                         cap},
                        {}},
                       defaults});
    defaults.type = "fixed_shards";
    v.cases.push_back({"fixed_shards",
                       {"the partitioner fixed_shards",
                        {Required(Integer<PartitionerSpec>(
                                      "num_shards", &PartitionerSpec::num_shards, 1, 1u << 20,
                                      "so many, or one a row where there are fewer rows"),
                                  "4")},
                        {}},
                       defaults});
    return v;
  }();
  return variant;
}

const Table<StrategySpec>& StrategyTable() {
  static const Table<StrategySpec> table = [] {
    Key<StrategySpec> partitioner{
        "partitioner",
        "mapping",
        "how variables are cut by rows into shards",
        false,
        [](Reader& r, const Node& n, StrategySpec* t) {
          PartitionerVariant().Read(r, n, &t->partitioner);
        },
        [](const StrategySpec& t) {
          return std::optional<Node>(PartitionerVariant().Write(t.partitioner));
        }};
    partitioner.explain_inner = [](std::string* out, const std::string& indent) {
      for (const auto& c : PartitionerVariant().cases) {
        std::string text;
        absl::StrAppend(&text, indent, "# the rule (one of ",
                        absl::StrJoin(PartitionerVariant().Types(), ", "), "; required)\n", indent,
                        "type: ", c.type, "\n");
        c.table.Explain(c.defaults, indent, &text);
        if (c.type == "min_size") {
          *out += text;
          continue;
        }
        absl::StrAppend(out, indent, "# or\n");
        const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
        for (const std::string& line : lines)
          absl::StrAppend(out, indent, "#   ", line.substr(indent.size()), "\n");
      }
    };
    return Table<StrategySpec>{
        "spec.strategy",
        {Choice<StrategySpec>("mode", &StrategySpec::mode, {"async"}, kModesNotBuilt, "strategy.",
                              "how far workers may be apart"),
         Integer<StrategySpec>(
             "pipeline", &StrategySpec::pipeline, 0, 1,
             "1: the pull of the next step overlaps this one, at one step of staleness"),
         Flag<StrategySpec>("deterministic", &StrategySpec::deterministic,
                            "two runs give the same bits; one worker and pipeline 0 only"),
         partitioner,
         Integer<StrategySpec>(
             "table_slots", &StrategySpec::table_slots, 1, 65536,
             "shards that the rows of all embedding tables are spread over; fixed for the job")},
        {"staleness", "backup_workers", "workers", "codec", "compression", "local_steps",
         "replicas", "durability"}};
  }();
  return table;
}

const Table<TrainingSpec>& TrainingTable() {
  static const Table<TrainingSpec> table{
      "spec.training",
      {Integer<TrainingSpec>("epochs", &TrainingSpec::epochs, 1, 1000000, "passes over the data"),
       Integer<TrainingSpec>("steps_per_closure", &TrainingSpec::steps_per_closure, 1, 4096,
                             "steps that are granted, retried and reported as one"),
       EvaluateKey(),
       Integer<TrainingSpec>("seed", &TrainingSpec::seed, 0, kAny, "of initialisers and dropout"),
       Choice<TrainingSpec>("on_lost_updates", &TrainingSpec::on_lost_updates, {"fail", "report"},
                            {}, "",
                            "a closure that a lost server needs again cannot be run again, because "
                            "its data changed or went away: end the job, or go on "
                            "without its updates there and count them as lost"),
       Choice<TrainingSpec>(
           "on_over_budget", &TrainingSpec::on_over_budget, {"fail", "pause"}, {}, "",
           "a push finds no room at a server: a table is at its bytes_max or the server's tables "
           "are at --memory-bytes-max, and no row may "
           "give way: end the job, or let its workers wait and try again until there is room"),
       Choice<TrainingSpec>("precision", &TrainingSpec::precision,
                            {"float32", "tf32", "mixed_bfloat16", "mixed_float16"}, {}, "",
                            "what steps are computed in; servers keep and apply float32. "
                            "mixed_bfloat16 and mixed_float16: activations, their gradients "
                            "and what products read of the weights are of 16 bits, as Keras' "
                            "policies of these names (mixed_float16 scales its losses by "
                            "itself); tf32: float32, but GPUs may round what products read to 10 "
                            "bits. A worker whose device has it not gets none of the job; "
                            "where none has it the job fails"),
       WireTypeKey()},
      {"max_steps", "early_stopping", "max_seconds", "nan_policy", "on_nan", "steps", "callbacks",
       "validation_split"}};
  return table;
}

const Table<CountingSpec>& CountingTable() {
  static const Table<CountingSpec> table{
      "spec.counting",
      {Required(Integer<CountingSpec>("examples", &CountingSpec::examples, 1, 1ull << 32,
                                      "rows that are counted, one an example"),
                "600"),
       Integer<CountingSpec>("shards", &CountingSpec::shards, 1, 4096,
                             "partitions of the [examples, 1] variable"),
       Integer<CountingSpec>("step_ms", &CountingSpec::step_ms, 0, 60000,
                             "each step takes at least so long"),
       Integer<CountingSpec>("tables", &CountingSpec::tables, 0, 16,
                             "embedding tables beside, of which each step pushes a few rows"),
       Integer<CountingSpec>("table_ids", &CountingSpec::table_ids, 1, 1u << 20,
                             "ids of each table"),
       ByteSize<CountingSpec>("table_bytes_max", &CountingSpec::table_bytes_max, 0, 1ull << 40,
                              "limit of the last table; 0: none"),
       Choice<CountingSpec>("optimizer", &CountingSpec::optimizer, {"counting"},
                            {"sgd", "adam", "adagrad"}, "counting.", "weight += g, slot += 2 g")},
      {}};
  return table;
}

const Table<CheckpointSpec>& CheckpointTable() {
  static const Table<CheckpointSpec> table{
      "spec.checkpoint",
      {EveryKey(),
       Integer<CheckpointSpec>("keep", &CheckpointSpec::keep, 1, 100,
                               "so many checkpoints are kept"),
       Flag<CheckpointSpec>("resume", &CheckpointSpec::resume,
                            "go on from the newest checkpoint of an earlier job of this name; with "
                            "none the job begins at its first step, one that does "
                            "not fit is refused with the reason"),
       DirectoryKey()},
      {"every_steps", "steps", "on_end", "codec", "compression", "async", "format", "best"}};
  return table;
}

const Table<ResourcesSpec>& ResourcesTable() {
  static const Table<ResourcesSpec> table{
      "spec.resources",
      {RealNumber<ResourcesSpec>("share", &ResourcesSpec::share, {.min = 0.001, .max = 1000},
                                 "workers are divided among the running jobs in proportion to it "
                                 "(--jobs-running-max of the coordinator)"),
       ByteSize<ResourcesSpec>(
           "server_memory_bytes_max", &ResourcesSpec::server_memory_bytes_max, 0, 1ull << 50,
           "a job whose variables take more on the servers, optimizer slots included and tables "
           "counted as their bytes_max, is refused once it is "
           "planned; 0: any size")},
      {"workers", "gpus", "priority", "cpus", "memory"}};
  return table;
}

const Table<ModelSpec>& ModelTable() {
  static const Table<ModelSpec> table{
      "spec.model",
      {InputsKey(), TablesKey(), LayersKey(), LossesKey(), MetricsKey()},
      {"outputs", "initializers", "python", "pretrained", "weights"}};
  return table;
}

const Table<JobSpec>& TrainingJobTable() {
  static const Table<JobSpec> table{
      "spec",
      {TypeKey(),
       Required(Section<JobSpec, DataSpec>("data", &JobSpec::data, &DataTable(), "the examples")),
       Required(Section<JobSpec, ModelSpec>("model", &JobSpec::model, &ModelTable(),
                                            "layers, loss, metrics")),
       OptimizerKey(), OptimizersKey(),
       Section<JobSpec, StrategySpec>("strategy", &JobSpec::strategy, &StrategyTable(),
                                      "how the work is spread"),
       Section<JobSpec, TrainingSpec>("training", &JobSpec::training, &TrainingTable(), "how long"),
       CheckpointKey(),
       Section<JobSpec, ResourcesSpec>("resources", &JobSpec::resources, &ResourcesTable(),
                                       "what it may take beside other jobs")},
      kSpecKeysNotBuilt};
  return table;
}

const Table<JobSpec>& CountingJobTable() {
  static const Table<DataSpec> data{"spec.data of a counting job", CommonDataKeys(),
                                    kDataKeysNotBuilt};
  static const Table<TrainingSpec> training = [] {
    Table<TrainingSpec> t = TrainingTable();
    std::erase_if(t.keys, [](const Key<TrainingSpec>& key) {
      return key.name == "precision";
    });  // it computes nothing
    return t;
  }();
  static const Table<JobSpec> table{
      "spec of a counting job",
      {TypeKey(),
       Required(Section<JobSpec, CountingSpec>("counting", &JobSpec::counting, &CountingTable(),
                                               "what is counted")),
       Section<JobSpec, DataSpec>("data", &JobSpec::data, &data, "batches and order"),
       Section<JobSpec, StrategySpec>("strategy", &JobSpec::strategy, &StrategyTable(),
                                      "how the work is spread"),
       Section<JobSpec, TrainingSpec>("training", &JobSpec::training, &training, "how long"),
       CheckpointKey(),
       Section<JobSpec, ResourcesSpec>("resources", &JobSpec::resources, &ResourcesTable(),
                                       "what it may take beside other jobs")},
      kSpecKeysNotBuilt};
  return table;
}

const Table<JobSpec>& FunctionsJobTable() {
  static const Table<StrategySpec> strategy = [] {
    Table<StrategySpec> t{
        "spec.strategy of a functions job",
        {},
        {"deterministic", "pipeline", "staleness", "workers", "codec", "replicas", "durability"}};
    for (const Key<StrategySpec>& key : StrategyTable().keys) {
      if (key.name == "mode" || key.name == "partitioner") t.keys.push_back(key);
    }
    return t;
  }();
  static const Table<TrainingSpec> training{
      "spec.training of a functions job",
      {Integer<TrainingSpec>("seed", &TrainingSpec::seed, 0, kAny,
                             "of initialisers and of what a step draws"),
       WireTypeKey()},
      {}};
  static const Table<JobSpec> table = [] {
    Key<JobSpec> checkpoint = CheckpointKey();
    checkpoint.read = [read = checkpoint.read](Reader& r, const Node& n, JobSpec* t) {
      read(r, n, t);
      if (const Node* resume = n.kind == Node::Kind::kMap ? n.Find("resume") : nullptr;
          resume != nullptr && t->checkpoint.resume)
        r.Report(resume->where(),
                 "not built yet: `resume: true` of a functions job: the arguments of its closures "
                 "are in no checkpoint");
    };
    return Table<JobSpec>{
        "spec of a functions job",
        {TypeKey(),
         Required(Section<JobSpec, FunctionsSpec>("functions", &JobSpec::functions,
                                                  &FunctionsTable(), "what closures work on")),
         OptimizerKey(),
         Section<JobSpec, StrategySpec>("strategy", &JobSpec::strategy, &strategy,
                                        "how variables are cut"),
         Section<JobSpec, TrainingSpec>("training", &JobSpec::training, &training, "the seed"),
         checkpoint,
         Section<JobSpec, ResourcesSpec>("resources", &JobSpec::resources, &ResourcesTable(),
                                         "what it may take beside other jobs")},
        kSpecKeysNotBuilt};
  }();
  return table;
}

const Table<JobSpec>& JobTableOf(const JobSpec& spec) {
  return spec.type == "counting"    ? CountingJobTable()
         : spec.type == "functions" ? FunctionsJobTable()
                                    : TrainingJobTable();
}

}  // namespace evergrad::config

#include "common/config/job_schema.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_split.h"

namespace evergrad::config {
namespace {

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

}  // namespace

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

const Table<ModelSpec>& ModelTable() {
  static const Table<ModelSpec> table{
      "spec.model",
      {InputsKey(), TablesKey(), LayersKey(), LossesKey(), MetricsKey()},
      {"outputs", "initializers", "python", "pretrained", "weights"}};
  return table;
}

}  // namespace evergrad::config

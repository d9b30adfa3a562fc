#include "common/config/job_schema.h"

#include <algorithm>

#include "absl/strings/str_split.h"
#include "common/layers/initializers.h"
#include "common/layers/layer_descriptor.h"
#include "common/layers/losses.h"
#include "common/layers/metrics.h"
#include "common/layers/named.h"
#include "common/optimizers/registry.h"

namespace evergrad::config {
namespace {

Key<ModelSpec> InputsKey() {
  return {
      "inputs",
      "mapping of field name to {shape}",
      "the fields of the data that the model reads, with the shape of one example ([] means one "
      "number). The inputs of embeddings are ids",
      true,
      [](Reader& r, const Node& n, ModelSpec* t) {
        if (!r.IsMap(n, "model.inputs")) return;
        if (n.entries.empty())
          r.Report(n.where(), "model.inputs: expected at least one input, got none");
        if (n.entries.size() > kLayersMax)
          return r.Report(n.where(), absl::StrCat("too many model inputs: limit=", kLayersMax,
                                                  " got=", n.entries.size()));
        for (const YamlEntry& entry : n.entries) {
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
      "the layers in order: a layer can read only layers above it. Types, weights and data layouts "
      "are those of Keras",
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
          // The name of a layer of an unknown type is kept, because layers below may read it.
          LayerVariant().Read(r, item, &layer);
          const LayerDescriptor* const found = FindLayer(layer.type);
          if (found != nullptr && found->complete != nullptr) found->complete(item, &layer);
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
    ExplainLayers(indent, out);
    absl::StrAppend(out, indent, "- {name: logits, type: dense, units: 10, input: drop}\n");
  };
  return key;
}

Key<ModelSpec> LossesKey() {
  Key<ModelSpec> key{"losses",
                     "list of one mapping, or the mapping itself",
                     "the loss to minimize: its mean over the batch",
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
      // A model has exactly one loss, so the other types are shown as comments.
      std::string text;
      absl::StrAppend(&text, "-\n  # the kind of loss (one of ",
                      absl::StrJoin(LossVariant().Types(), ", "), "; required)\n  type: ", c.type,
                      "\n");
      LossSpec defaults = c.defaults;
      defaults.output = "logits";
      c.table.Explain(defaults, "  ", &text);
      AppendLines(text, first ? indent : indent + "# ", out);
    }
  };
  return key;
}

const Table<TableSpec>& EmbeddingTableTable() {
  static const Table<TableSpec> table{
      "an embedding table",
      {Required(Integer<TableSpec>(
                    "dimension", &TableSpec::dimension, 1, optimizers::kRowFloatsMax,
                    absl::StrCat("number of elements of a row. A row and its optimizer state "
                                 "have at most ",
                                 optimizers::kRowFloatsMax)),
                "16"),
       InitializerKey<TableSpec>("initializer", &TableSpec::initializer,
                                 "initial values of a row. The values depend only on the job's "
                                 "seed, the table's name and the id"),
       RegularizerKey<TableSpec>(
           "embeddings_regularizer", &TableSpec::l2,
           "l2 times the sum of the squared elements of the rows that a batch reads is added to "
           "the loss. Each row counts once per batch"),
       Integer<TableSpec>("admit_after", &TableSpec::admit_after, 1, 1u << 30,
                          "number of the push to an id that creates its row. Until that push, the "
                          "id reads default_row"),
       RealNumber<TableSpec>("default_row", &TableSpec::default_row, {-3e38, 3e38, false, false},
                             "value of each element for an id without a row. The key requires an "
                             "admit_after above 1"),
       Integer<TableSpec>(
           "ttl_steps", &TableSpec::ttl_steps, 0, 1ull << 48,
           "a row is removed after this number of steps of the plan without a push to it; 0 "
           "means never"),
       ByteSize<TableSpec>("bytes_max", &TableSpec::bytes_max, 0, 1ull << 50,
                           "memory limit for the table's rows and index, on all servers "
                           "together; 0 means that only the servers' own limit applies"),
       Choice<TableSpec>("evict", &TableSpec::evict, {"none", "lru"}, {"lfu", "random"}, "table.",
                         "behaviour at the memory limit: lru evicts the rows with the oldest last "
                         "push, none refuses pushes")},
      {"ttl", "optimizer", "dtype", "combiner", "partitions", "embeddings_initializer"}};
  return table;
}

Key<ModelSpec> TablesKey() {
  Key<ModelSpec> key{
      "tables",
      "mapping of table name to its settings",
      "embedding tables. A row has a 64-bit id and is created on first use. Layers of type "
      "embedding read a table by its name, and several layers can read the same table",
      false,
      [](Reader& r, const Node& n, ModelSpec* t) {
        if (!r.IsMap(n, "model.tables")) return;
        if (n.entries.size() > kTablesMax)
          return r.Report(n.where(), absl::StrCat("too many tables: limit=", kTablesMax,
                                                  " got=", n.entries.size()));
        for (const YamlEntry& entry : n.entries) {
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
    // The section is commented out, because an empty section is a mistake, and so is a table that
    // no layer reads.
    out->erase(out->rfind(indent.substr(2) + "tables:"));
    absl::StrAppend(out, indent.substr(2), "# tables:\n");
    AppendLines(text, indent.substr(2) + "#   ", out);
  };
  return key;
}

void ReadMetric(Reader& r, const Node& item, std::vector<std::string>* metrics) {
  const auto v = r.Text(item, "metrics");
  if (!v) return;
  const auto entry = std::find_if(Metrics().begin(), Metrics().end(),
                                  [&](const MetricDescriptor& m) { return m.name == *v; });
  const auto meant =
      std::find_if(Metrics().begin(), Metrics().end(),
                   [&](const MetricDescriptor& m) { return !v->empty() && m.nickname == *v; });
  const std::vector<std::string> names = NamesOf(Metrics(), true);
  if (entry == Metrics().end())
    r.Report(item.where(), absl::StrCat("`metrics`: expected one of ", absl::StrJoin(names, ", "),
                                        ", got ", item.Describe(),
                                        meant == Metrics().end()
                                            ? Suggestion(*v, names)
                                            : absl::StrCat("; did you mean `", meant->name, "`?")));
  else if (!entry->built)
    r.Report(item.where(), absl::StrCat("not built yet: metric `", *v, "`"));
  else if (std::find(metrics->begin(), metrics->end(), *v) != metrics->end())
    r.Report(item.where(), absl::StrCat("`metrics`: duplicate metric ", *v));
  else
    metrics->push_back(*v);
}

Key<ModelSpec> MetricsKey() {
  return {"metrics",
          absl::StrCat("list of: ", absl::StrJoin(NamesOf(Metrics(), true), ", ")),
          "metrics of each evaluation, in addition to the mean loss",
          false,
          [](Reader& r, const Node& n, ModelSpec* t) {
            if (!r.IsList(n, "metrics", "names")) return;
            for (const Node& item : n.items) ReadMetric(r, item, &t->metrics);
          },
          [](const ModelSpec& t) {
            std::vector<Node> items;
            for (const std::string& metric : t.metrics) items.push_back(MakeText(metric));
            return std::optional<Node>(MakeList(std::move(items)));
          },
          "[accuracy]"};
}

}  // namespace

const Table<ModelSpec>& ModelTable() {
  static const Table<ModelSpec> table{
      "spec.model",
      {InputsKey(), TablesKey(), LayersKey(), LossesKey(), MetricsKey()},
      {"outputs", "initializers", "python", "pretrained", "weights"}};
  return table;
}

}  // namespace evergrad::config

// The tables of `spec.data`: sources, fields, transforms.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/config/field_kind.h"
#include "common/config/job_schema.h"
#include "common/fs/file.h"

namespace evergrad::config {
namespace {

constexpr std::size_t kTransformsMax = 32, kEntriesMax = 4096, kFieldsMax = 4096,
                      kColumnsMax = 4096;

// ---- sources

Key<SourceSpec> PathKey(std::string name, std::string SourceSpec::*member, std::string type,
                        std::string help, std::string example) {
  Key<SourceSpec> key =
      Required(PlainText<SourceSpec>(name, member, std::move(help)), std::move(example));
  key.type = std::move(type);
  key.read = [=](Reader& r, const Node& n, SourceSpec* t) {
    const auto v = r.Text(n, name);
    if (!v) return;
    if (v->empty())
      return r.Report(n.where(), absl::StrCat("`", name, "`: expected a path, got nothing"));
    const auto path = fs::LocalPath(*v);
    if (!path.ok())
      r.Report(n.where(), absl::StrCat("`", name, "`: ", path.status().message()));
    else if (path->find_first_of("*?") != std::string::npos)
      r.Report(n.where(), absl::StrCat("`", name, "`: expected the path of one file, got ",
                                       n.Describe(), ": not built yet: patterns of several files"));
    else
      t->*member = *path;
  };
  // A path that holds `${` is written so that it is not taken for a variable when it is read again.
  key.write = [=](const SourceSpec& t) {
    return std::optional<Node>(MakeText(absl::StrReplaceAll(t.*member, {{"${", "$${"}})));
  };
  return key;
}

Key<SourceSpec> SeparatorKey() {
  Key<SourceSpec> key =
      PlainText<SourceSpec>("separator", &SourceSpec::separator, "between the columns");
  key.type = "text of 1 to 8 characters";
  key.read = [](Reader& r, const Node& n, SourceSpec* t) {
    const auto v = r.Text(n, "separator");
    if (!v) return;
    if (v->empty() || v->size() > 8 || v->find_first_of("\"\r\n") != std::string::npos)
      r.Report(
          n.where(),
          absl::StrCat("`separator`: expected 1 to 8 characters without quotes and line ends, got ",
                       n.Describe()));
    else
      t->separator = *v;
  };
  return key;
}

Key<SourceSpec> MissingKey() {
  return {"missing",
          "text, or list of texts",
          "what stands for a missing value; a field's `default` says what it becomes",
          false,
          [](Reader& r, const Node& n, SourceSpec* t) {
            std::vector<const Node*> items;
            if (n.kind == Node::Kind::kSequence)
              for (const Node& item : n.items) items.push_back(&item);
            else
              items.push_back(&n);
            if (items.size() > 64)
              return r.Report(n.where(), absl::StrCat("`missing`: too many texts: limit=64 got=",
                                                      items.size()));
            t->missing.clear();
            for (const Node* item : items)
              if (const auto v = r.Text(*item, "missing")) t->missing.push_back(*v);
          },
          [](const SourceSpec& t) {
            std::vector<Node> items;
            for (const std::string& text : t.missing) items.push_back(MakeText(text));
            return std::optional<Node>(MakeList(std::move(items)));
          }};
}

Key<SourceSpec> SplitKey() {
  Key<SourceSpec> key{
      "split",
      "mapping {modulo, equals, take: eval}",
      "of data.train: line n of the data (from 0) is evaluated on where n % modulo == equals, and "
      "trained on elsewhere; data.eval is then left out",
      false,
      [](Reader& r, const Node& n, SourceSpec* t) {
        struct Split {
          std::uint64_t modulo = 0, equals = 0;
          std::string take = "eval";
        };
        static const Table<Split> table{
            "`split`",
            {Required(Integer<Split>("modulo", &Split::modulo, 2, 1u << 30, "")),
             Required(Integer<Split>("equals", &Split::equals, 0, 1u << 30, "")),
             Choice<Split>("take", &Split::take, {"eval"}, {"train", "predict"}, "split.", "")},
            {"hash", "fraction", "seed"}};
        Split split;
        const std::size_t before = r.count();
        table.Read(r, n, &split);
        if (r.count() != before) return;
        if (split.equals >= split.modulo)
          return r.Report(n.where(), absl::StrCat("`split`: no line has n % ", split.modulo,
                                                  " == ", split.equals));
        t->split = {split.modulo, split.equals, false};
      },
      [](const SourceSpec& t) {
        if (t.split.modulo == 0) return std::optional<Node>();
        Node map;
        Append(&map, "modulo", MakePlain(absl::StrCat(t.split.modulo)));
        Append(&map, "equals", MakePlain(absl::StrCat(t.split.equals)));
        Append(&map, "take", MakeText("eval"));
        return std::optional<Node>(std::move(map));
      }};
  key.example = "{modulo: 10, equals: 9, take: eval}";
  return key;
}

const Variant<SourceSpec>& SourceVariant() {
  static const Variant<SourceSpec> variant = [] {
    Variant<SourceSpec> v{"a data source",
                          "format",
                          &SourceSpec::format,
                          {},
                          {"tsv", "tfrecord", "parquet", "libsvm", "png", "npz", "jsonl"},
                          ""};
    const NotBuilt not_built = {"shard_by", "cache",   "compression",
                                "encoding", "comment", "skip_lines"};
    v.cases.push_back(
        {"idx",
         {"an idx source",
          {PathKey("images", &SourceSpec::images, "path of an IDX file, .gz or plain",
                   "relative paths are taken from the job file's folder",
                   "\"${EVERGRAD_DATA:-../data}/fashion-mnist/train-images-idx3-ubyte.gz\""),
           PathKey("labels", &SourceSpec::labels, "path of an IDX file, .gz or plain",
                   "one class number an example",
                   "\"${EVERGRAD_DATA:-../data}/fashion-mnist/train-labels-idx1-ubyte.gz\"")},
          not_built},
         {}});
    SourceSpec csv;
    csv.format = "csv";
    v.cases.push_back(
        {"csv",
         {"a csv source",
          {PathKey("path", &SourceSpec::path, "path of a file, .gz or plain",
                   "relative paths are taken from the job file's folder",
                   "\"${EVERGRAD_DATA:-../data}/ratings/ratings.csv\""),
           Flag<SourceSpec>("header", &SourceSpec::header,
                            "whether the first record has the columns' names"),
           SeparatorKey(),
           Flag<SourceSpec>(
               "quoting", &SourceSpec::quoting,
               "whether values may be quoted, as RFC 4180 has it; false: a quote is text"),
           MissingKey(), SplitKey()},
          not_built},
         csv});
    SourceSpec synthetic;
    synthetic.format = "synthetic";
    v.cases.push_back(
        {"synthetic",
         {"a synthetic source",
          {Required(Integer<SourceSpec>("examples", &SourceSpec::examples, 1, 1ull << 40,
                                        "so many, made as they are read"),
                    "1000000"),
           Integer<SourceSpec>("seed", &SourceSpec::seed, 0, kAny,
                               "of the examples and of the hidden model behind their labels"),
           Integer<SourceSpec>("skip", &SourceSpec::skip, 0, 1ull << 40,
                               "begins with this example of the seed's endless sequence: for "
                               "evaluation on others")},
          not_built},
         synthetic});
    return v;
  }();
  return variant;
}

Key<DataSpec> SourceKey(std::string name, std::optional<SourceSpec> DataSpec::*member,
                        std::string help, bool required) {
  Key<DataSpec> key{
      name,
      absl::StrCat("mapping with format: ", absl::StrJoin(SourceVariant().Types(), ", ")),
      std::move(help),
      required,
      [=](Reader& r, const Node& n, DataSpec* t) {
        if (!r.IsMap(n, absl::StrCat("data.", name))) return;
        SourceSpec source;
        SourceVariant().Read(
            r, n, &source);  // of an unknown format: `format` is empty, and the rules stay silent
        source.where = n.where();
        t->*member = std::move(source);
      },
      [=](const DataSpec& t) {
        if (!(t.*member).has_value() || (t.*member)->split.taken)
          return std::optional<Node>();  // a split makes it again
        return std::optional<Node>(SourceVariant().Write(*(t.*member)));
      }};
  key.explain_inner = [name](std::string* out, const std::string& indent) {
    for (const auto& c : SourceVariant().cases) {
      std::string text;
      absl::StrAppend(&text, indent, "# what it is (one of ",
                      absl::StrJoin(SourceVariant().Types(), ", "), "; required)\n", indent,
                      "format: ", c.type, "\n");
      c.table.Explain(c.defaults, indent, &text);
      if (name == "eval") text = absl::StrReplaceAll(text, {{"train-", "t10k-"}});
      if (c.type == "idx") {
        *out += text;
        continue;
      }
      if (name == "eval") continue;  // as above
      absl::StrAppend(out, indent, "# or\n");
      const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
      for (const std::string& line : lines)
        absl::StrAppend(out, indent, "#   ", line.substr(indent.size()), "\n");
    }
  };
  return key;
}

// ---- transforms

const std::vector<std::string> kTransforms = {"scale", "offset",     "log1p", "bucketize",
                                              "hash",  "vocabulary", "map"};
const NotBuilt kTransformsNotBuilt = {"normalize",   "log",   "clip", "one_hot",
                                      "standardize", "crop",  "flip", "resize",
                                      "shift",       "split", "lower"};

// Those that cannot stand alone, with an example of what they need.
constexpr std::pair<const char*, const char*> kTransformSettings[] = {
    {"scale", "0.5"},
    {"offset", "-1"},
    {"bucketize", "[18, 25]"},
    {"hash", "{buckets: 1000}"},
    {"vocabulary", "{min_count: 1}"},
    {"map", "{\"yes\": 1, \"no\": 0}"}};

bool ReadBounds(Reader& r, const Node& n, Transform* t) {
  if (!r.IsList(n, "bucketize", "rising numbers")) return false;
  if (n.items.empty() || n.items.size() > kEntriesMax) {
    r.Report(n.where(), absl::StrCat("`bucketize`: expected 1 to ", kEntriesMax,
                                     " rising numbers, got ", n.items.size()));
    return false;
  }
  for (const Node& item : n.items) {
    const auto v = r.Real(item, "bucketize");
    if (!v) return false;
    if (!t->bounds.empty() && *v <= t->bounds.back()) {
      r.Report(item.where(), absl::StrCat("`bucketize`: expected rising numbers, got ",
                                          FormatReal(*v), " after ", FormatReal(t->bounds.back())));
      return false;
    }
    t->bounds.push_back(*v);
  }
  return true;
}

bool ReadMap(Reader& r, const Node& n, Transform* t) {
  if (!r.IsMap(n, "map")) return false;
  if (n.entries.empty() || n.entries.size() > kEntriesMax) {
    r.Report(n.where(), absl::StrCat("`map`: expected 1 to ", kEntriesMax, " entries, got ",
                                     n.entries.size()));
    return false;
  }
  for (const Entry& entry : n.entries) {
    const auto v = r.Real(entry.value, "map");
    if (!v) return false;
    t->entries.emplace_back(entry.key, *v);
  }
  return true;
}

bool ReadTransform(Reader& r, const Entry& entry, Transform* t) {
  const Node& n = entry.value;
  t->type = entry.key;
  if (entry.key == "scale" || entry.key == "offset") {
    const auto v = r.Real(n, entry.key);
    if (v) t->value = *v;
    return v.has_value();
  }
  if (entry.key == "bucketize") return ReadBounds(r, n, t);
  if (entry.key == "map") return ReadMap(r, n, t);
  const std::size_t before = r.count();
  if (entry.key == "hash") {
    static const Table<Transform> table{
        "`hash`",
        {Required(Integer<Transform>("buckets", &Transform::buckets, 1, 1ull << 62, ""))},
        {"salt", "seed"}};
    table.Read(r, n, t);
  } else if (entry.key == "vocabulary") {
    static const Table<Transform> table{
        "`vocabulary`",
        {Integer<Transform>("min_count", &Transform::min_count, 1, kAny, "")},
        {"max_size", "file", "words"}};
    table.Read(r, n, t);
  } else if (n.kind != Node::Kind::kNull) {  // log1p
    r.Report(n.where(), "`log1p` has no value: write `- log1p`");
  }
  return r.count() == before;
}

void ReadTransforms(Reader& r, const Node& n, FieldSpec* t,
                    const std::vector<std::string>& allowed) {
  if (!r.IsList(n, "transforms", "mappings like {scale: 0.5}")) return;
  if (n.items.size() > kTransformsMax) {
    r.Report(n.where(),
             absl::StrCat("too many transforms: limit=", kTransformsMax, " got=", n.items.size()));
    return;
  }
  for (const Node& item : n.items) {
    std::vector<Entry> plain;
    if (item.kind == Node::Kind::kScalar) {  // `- log1p`
      const auto example =
          std::find_if(std::begin(kTransformSettings), std::end(kTransformSettings),
                       [&](const auto& one) { return item.text == one.first; });
      if (example != std::end(kTransformSettings)) {
        r.Report(item.where(), absl::StrCat("transform `", item.text,
                                            "` needs its settings: expected something like {",
                                            item.text, ": ", example->second, "}"));
        continue;
      }
      Entry& entry = plain.emplace_back(Entry{item.text, item.line, item.column, item.file, {}});
      entry.value.line = item.line;
      entry.value.column = item.column;
      entry.value.file = item.file;
    }
    if (plain.empty() && !r.IsMap(item, "a transform")) continue;
    const std::vector<Entry>& entries = plain.empty() ? item.entries : plain;
    for (const Entry& entry : entries) {
      if (std::find(kTransformsNotBuilt.begin(), kTransformsNotBuilt.end(), entry.key) !=
          kTransformsNotBuilt.end()) {
        r.Report(entry.where(), absl::StrCat("not built yet: transform `", entry.key, "`"));
      } else if (std::find(allowed.begin(), allowed.end(), entry.key) == allowed.end()) {
        const bool elsewhere =
            std::find(kTransforms.begin(), kTransforms.end(), entry.key) != kTransforms.end();
        r.Report(entry.where(),
                 elsewhere ? absl::StrCat("transform `", entry.key, "` is one of csv fields")
                           : absl::StrCat("unknown transform `", entry.key.substr(0, 60), "`",
                                          Suggestion(entry.key, allowed)));
      } else {
        Transform transform;
        if (ReadTransform(r, entry, &transform)) t->transforms.push_back(std::move(transform));
      }
    }
    if (entries.size() != 1)
      r.Report(item.where(),
               absl::StrCat("a transform has one key, its name: got ", entries.size()));
  }
}

Node WriteTransform(const Transform& t) {
  if (t.type == "log1p") return MakeText(t.type);
  Node value;
  value.kind = Node::Kind::kMap;
  if (t.type == "bucketize") {
    std::vector<Node> bounds;
    for (const double bound : t.bounds) bounds.push_back(MakePlain(FormatReal(bound)));
    value = MakeList(std::move(bounds));
  } else if (t.type == "hash") {
    Append(&value, "buckets", MakePlain(absl::StrCat(t.buckets)));
  } else if (t.type == "vocabulary") {
    Append(&value, "min_count", MakePlain(absl::StrCat(t.min_count)));
  } else if (t.type == "map") {
    for (const auto& [text, number] : t.entries)
      Append(&value, text, MakePlain(FormatReal(number)));
  } else {
    value = MakePlain(FormatReal(t.value));
  }
  Node one;
  Append(&one, t.type, std::move(value));
  return one;
}

// ---- fields

Key<FieldSpec> TransformsKey(std::vector<std::string> allowed) {
  return {"transforms",
          "list",
          "in order",
          false,
          [=](Reader& r, const Node& n, FieldSpec* t) { ReadTransforms(r, n, t, allowed); },
          [](const FieldSpec& t) {
            std::vector<Node> items;
            for (const Transform& transform : t.transforms)
              items.push_back(WriteTransform(transform));
            return std::optional<Node>(MakeList(std::move(items)));
          }};
}

void ReadColumns(Reader& r, const Node& n, const char* key, FieldSpec* t) {
  std::vector<const Node*> items;
  t->list = n.kind == Node::Kind::kSequence;
  if (t->list) {
    for (const Node& item : n.items) items.push_back(&item);
  } else {
    items.push_back(&n);
  }
  if (items.empty() || items.size() > kColumnsMax)
    return r.Report(n.where(), absl::StrCat("`", key, "`: expected 1 to ", kColumnsMax,
                                            " columns, got ", items.size()));
  t->columns.clear();
  for (const Node* item : items)
    if (const auto v = r.Text(*item, key)) t->columns.push_back(*v);
}

// Written only where it is a setting of the field.
Key<FieldSpec> Where(Key<FieldSpec> key, bool (*holds)(const FieldSpec&)) {
  key.write_default = key.write;
  key.write = [write = key.write, holds](const FieldSpec& t) {
    return holds(t) ? write(t) : std::optional<Node>();
  };
  return key;
}
bool DrawsIds(const FieldSpec& field) { return field.type == "ids"; }
bool DrawsZipf(const FieldSpec& field) {
  return field.type == "ids" && field.distribution == "zipf";
}
bool HasSize(const FieldSpec& field) { return field.type != "label" && field.shape.empty(); }
bool IsLabel(const FieldSpec& field) { return field.type == "label"; }

const Table<FieldSpec>& FieldTable(const std::string& format) {
  static const Table<FieldSpec> idx{
      "a field of an idx source",
      {TransformsKey({"scale"})},
      {"column", "type", "default", "missing", "vocabulary", "hash_buckets"}};
  static const Table<FieldSpec> csv{
      "a field of a csv source",
      {Required(Key<FieldSpec>{
           "column", "number from 0, name in the header, or a list of them",
           "a list makes a field of shape [n]", false,
           [](Reader& r, const Node& n, FieldSpec* t) { ReadColumns(r, n, "column", t); },
           [](const FieldSpec& t) {
             std::vector<Node> items;
             for (const std::string& column : t.columns) items.push_back(MakeText(column));
             return std::optional<Node>(t.list || items.empty() ? MakeList(std::move(items))
                                                                : items[0]);
           }}),
       Required(Choice<FieldSpec>("type", &FieldSpec::type, {"int", "float", "string"},
                                  {"date", "bool"}, "field.", "what the column holds")),
       Key<FieldSpec>{"default", "text",
                      "what stands in for a missing value; left out: id 0 of a vocabulary, else "
                      "the user's error",
                      false,
                      [](Reader& r, const Node& n, FieldSpec* t) {
                        if (const auto v = r.Text(n, "default")) t->default_text = *v;
                      },
                      [](const FieldSpec& t) {
                        return t.default_text ? std::optional<Node>(MakeText(*t.default_text))
                                              : std::nullopt;
                      }},
       TransformsKey(kTransforms)},
      {"missing", "vocabulary", "hash_buckets", "delimiter"}};
  static const Table<FieldSpec> synthetic{
      "a field of a synthetic source",
      {Required(Choice<FieldSpec>("type", &FieldSpec::type, {"ids", "float", "label"}, {}, "field.",
                                  "ids of tables; normally distributed numbers; a class, drawn by "
                                  "a hidden model of all other fields")),
       Where(Integer<FieldSpec>("size", &FieldSpec::size, 0, 4096, "shape [size]; 0: one value"),
             &HasSize),
       Key<FieldSpec>{"shape", "list of up to 7 integers",
                      "of type float, instead of size: images are [height, width, channels]", false,
                      [](Reader& r, const Node& n, FieldSpec* t) { r.Shape(n, &t->shape); },
                      [](const FieldSpec& t) {
                        return t.shape.empty() ? std::nullopt
                                               : std::optional<Node>(MakeShape(t.shape));
                      }},
       Where(Integer<FieldSpec>("classes", &FieldSpec::classes, 2, 1u << 24,
                                "of a label: 0 to classes - 1, each about as frequent as the next"),
             &IsLabel),
       Where(Integer<FieldSpec>("ids", &FieldSpec::ids, 0, 1ull << 40,
                                "of type ids: element j draws from j * ids to (j + 1) * ids - 1"),
             &DrawsIds),
       Where(Choice<FieldSpec>("distribution", &FieldSpec::distribution, {"uniform", "zipf"},
                               {"normal"}, "field.", "of the ids; zipf: at most 16777216 ids"),
             &DrawsIds),
       Where(RealNumber<FieldSpec>("exponent", &FieldSpec::exponent, {0, 8, true, false},
                                   "of zipf: id k is drawn in proportion to (k + 1) ^ -exponent"),
             &DrawsZipf)},
      {"transforms", "mean", "stddev"}};
  return format == "csv" ? csv : format == "synthetic" ? synthetic : idx;
}

// For the reference: an example of each transform, and what it is for.
constexpr std::pair<const char*, const char*> kTransformsExplained[] = {
    {"scale: 0.5", "of a number, a real one: x * 0.5"},
    {"offset: -1", "of a number: x - 1; an integer plus an integer stays one"},
    {"log1p", "of a number, a real one: sign(x) * log(1 + abs(x))"},
    {"bucketize: [18, 25, 30]",
     "of a number, an integer: 0 below 18, 1 from 18 on, …, 3 from 30 on (1 to 4096 rising "
     "numbers)"},
    {"hash: {buckets: 1000}",
     "of a text or an integer, an integer: 0 to 999 (buckets: integer from 1 to "
     "4611686018427387904; required)"},
    {"vocabulary: {min_count: 2}",
     "of a text or an integer, an integer: 1, 2, … by falling count in the training data; 0: seen "
     "less often than "
     "min_count, never, or missing (min_count: integer of at least 1; default 1)"},
    {"map: {\"yes\": 1, \"no\": 0}",
     "of a text or an integer, the number; any other text is an error (1 to 4096 entries)"},
};

void ExplainFields(std::string* out, const std::string& indent) {
  std::string text;
  const auto explain = [&](const char* name, const std::string& format, const char* type,
                           const std::map<std::string, std::string>& examples) {
    absl::StrAppend(&text, name, ":\n");
    Table<FieldSpec> table = FieldTable(format);
    for (Key<FieldSpec>& key : table.keys) {
      if (const auto found = examples.find(key.name); found != examples.end())
        key.example = found->second;
      if (key.name == "transforms") {
        key.explain_inner = [](std::string* to, const std::string& inner) {
          for (const auto& [example, help] : kTransformsExplained)
            absl::StrAppend(to, inner, "- {", example, "}  # ", help, "\n");
        };
      }
    }
    FieldSpec defaults;
    defaults.type = type;
    table.Explain(defaults, "  ", &text);
  };
  explain("age", "csv", "", {{"column", "age"}, {"type", "float"}, {"default", "\"0\""}});
  absl::StrAppend(&text, "# or of a synthetic source\n");
  explain("words", "synthetic", "ids",
          {{"type", "ids"},
           {"size", "26"},
           {"shape", "[28, 28, 1]"},
           {"ids", "100000"},
           {"distribution", "zipf"},
           {"exponent", "1.05"},
           {"classes", "2"}});
  absl::StrAppend(out, indent, "image: {transforms: [{scale: 0.00392156862}]}\n", indent,
                  "# or of a csv source\n");
  const std::vector<std::string> lines =
      absl::StrSplit(absl::StrReplaceAll(text, {{"{log1p}", "log1p"}}), '\n', absl::SkipEmpty());
  for (const std::string& line : lines)
    absl::StrAppend(out, indent, line.starts_with("# or ") ? "" : "# ", line, "\n");
}

Key<DataSpec> FieldsKey() {
  Key<DataSpec> key{
      "fields",
      "mapping of field name to its settings",
      "what the examples have, and its transforms in order; an idx source has the fields image and "
      "label (docs/data.md)",
      false,
      [](Reader&, const Node&, DataSpec*) {},  // ReadFields: the sources decide what it may hold
      [](const DataSpec& t) {
        if (t.fields.empty()) return std::optional<Node>();
        Node map;
        for (const FieldSpec& field : t.fields) {
          // By what it has: a plan's text is written without sources.
          const std::string format = field.type.empty()       ? "idx"
                                     : !field.columns.empty() ? "csv"
                                                              : "synthetic";
          Node inner;
          FieldTable(format).Write(field, &inner);
          Append(&map, field.name, std::move(inner));
        }
        return std::optional<Node>(std::move(map));
      }};
  key.explain_inner = ExplainFields;
  return key;
}

Key<DataSpec> ShuffleKey() {
  return {"shuffle",
          "{seed: integer}, or off",
          "each epoch has an order of its own, a function of (seed, epoch)",
          false,
          [](Reader& r, const Node& n, DataSpec* t) {
            if (n.kind == Node::Kind::kScalar) {
              if (!n.quoted && n.text == "off")
                t->shuffle = false;
              else
                r.Report(n.where(),
                         absl::StrCat(
                             "`shuffle`: expected {seed: integer} or off, got ", n.Describe(),
                             n.text == "false" || n.text == "no" ? "; did you mean `off`?" : ""));
              return;
            }
            static const Table<DataSpec> table{
                "data.shuffle",
                {Required(Integer<DataSpec>("seed", &DataSpec::shuffle_seed, 0, kAny, ""))},
                {"buffer", "buffer_size", "blocks"}};
            t->shuffle = true;
            table.Read(r, n, t);
          },
          [](const DataSpec& t) {
            if (!t.shuffle) return std::optional<Node>(MakePlain("off"));
            Node map;
            Append(&map, "seed", MakePlain(absl::StrCat(t.shuffle_seed)));
            return std::optional<Node>(std::move(map));
          }};
}

void CheckField(Reader& r, const Entry& entry, const std::string& format, const DataSpec& data,
                const FieldSpec& field) {
  const Location where =
      entry.value.Find("type") != nullptr ? entry.value.Find("type")->where() : entry.where();
  if (format == "csv") {
    if (const auto kind = KindOfField(field); !kind.ok()) {
      const Node* transforms = entry.value.Find("transforms");
      r.Report(transforms != nullptr ? transforms->where() : where,
               std::string(kind.status().message()));
    }
    const auto named =
        std::find_if(field.columns.begin(), field.columns.end(), [](const std::string& column) {
          return column.empty() || !std::all_of(column.begin(), column.end(),
                                                [](char c) { return c >= '0' && c <= '9'; });
        });
    if (named != field.columns.end()) {
      const std::string& column = *named;
      for (const auto* source : {&data.train, &data.eval})
        if (source->has_value() && !(*source)->header && !(*source)->split.taken)
          r.Report(entry.value.Find("column")->where(),
                   absl::StrCat("column `", column.substr(0, 60),
                                "` is given by its name, and `header: false` of data.",
                                source == &data.train ? "train" : "eval",
                                " says that the file has no names: expected a number from 0"));
    }
    if (field.default_text) {
      const Location at = entry.value.Find("default")->where();
      const std::string got = absl::StrCat(", got `", field.default_text->substr(0, 60), "`");
      const auto first =
          field.transforms.empty() ? field.transforms.end() : field.transforms.begin();
      const auto integer = field.type == "int" ? IntegerOf(*field.default_text) : std::nullopt;
      if (field.type == "int" && !integer)
        r.Report(at, absl::StrCat("`default` of a field of type int: expected an integer", got));
      else if (field.type == "float" && !RealOf(*field.default_text))
        r.Report(at, absl::StrCat("`default` of a field of type float: expected a number", got));
      else if (first != field.transforms.end() && first->type == "map" &&
               std::none_of(first->entries.begin(), first->entries.end(), [&](const auto& e) {
                 return e.first == (integer ? absl::StrCat(*integer) : *field.default_text);
               }))
        r.Report(at, absl::StrCat("`default`: expected one of the texts of `map`", got));
    }
    return;
  }
  if (format != "synthetic") return;
  if (field.type == "ids" && field.ids == 0)
    r.Report(where, "a field of type ids needs `ids`, the number of them");
  if (field.type != "ids" && (field.ids != 0 || entry.value.Find("distribution") != nullptr ||
                              entry.value.Find("exponent") != nullptr))
    r.Report(
        where,
        absl::StrCat(
            "`ids`, `distribution` and `exponent` are settings of type ids, this field is of type ",
            field.type));
  if (field.type == "label" && field.size != 0) r.Report(where, "a label has no `size`");
  if (field.type != "float" && entry.value.Find("shape") != nullptr)
    r.Report(where, absl::StrCat("`shape` is a setting of type float, this field is of type ",
                                 field.type));
  if (entry.value.Find("shape") != nullptr && entry.value.Find("size") != nullptr)
    r.Report(where, "`shape` and `size` are two ways to say one thing; keep one");
  if (field.type != "label" && entry.value.Find("classes") != nullptr)
    r.Report(where, absl::StrCat("`classes` is a setting of type label, this field is of type ",
                                 field.type));
  if (field.distribution == "zipf" && field.ids > (1u << 24))
    r.Report(where, "zipf draws from at most 16777216 ids");
  if (field.distribution != "zipf" && entry.value.Find("exponent") != nullptr)
    r.Report(where, "`exponent` is a setting of distribution zipf");
}

}  // namespace

const NotBuilt kDataKeysNotBuilt = {"global_batch_size", "predict", "prefetch", "cache",
                                    "bad_records",       "weights"};

std::vector<Key<DataSpec>> CommonDataKeys() {
  return {Integer<DataSpec>("batch_size", &DataSpec::batch_size, 1, 1u << 20,
                            "examples per step of one worker"),
          ShuffleKey()};
}

void ReadFields(Reader& r, const Node& data, DataSpec* t) {
  const Node* const fields = data.Find("fields");
  const std::string format = t->train ? t->train->format : t->eval ? t->eval->format : "";
  if (fields == nullptr) {
    if (format != "idx" && !format.empty())
      r.Report(data.where(), absl::StrCat("missing key `fields` in spec.data: a ", format,
                                          " source has those that are named there"));
    return;
  }
  if (!r.IsMap(*fields, "data.fields")) return;
  if (fields->entries.size() > kFieldsMax)
    return r.Report(fields->where(), absl::StrCat("too many fields: limit=", kFieldsMax,
                                                  " got=", fields->entries.size()));
  for (const Entry& entry : fields->entries) {
    if (format == "idx" && entry.key != "image" && entry.key != "label") {
      r.Report(entry.where(), absl::StrCat("unknown field `", entry.key.substr(0, 60),
                                           "`: an idx source has image and label",
                                           Suggestion(entry.key, {"image", "label"})));
      continue;
    }
    if (!IsPartName(entry.key)) {
      r.Report(
          entry.where(),
          absl::StrCat(
              "name of a field: expected a letter, then letters, digits, `_`, `-` or `.`, got `",
              entry.key.substr(0, 60), "`"));
      continue;
    }
    FieldSpec field;
    field.name = entry.key;
    const std::size_t before = r.count();
    if (format.empty()) {
      Judge(r, entry.value, {&FieldTable("csv"), &FieldTable("idx"), &FieldTable("synthetic")},
            &field);
      t->fields.push_back(std::move(field));
      continue;
    }
    if (entry.value.kind != Node::Kind::kNull || format != "idx")
      FieldTable(format).Read(r, entry.value, &field);
    if (format == "idx" && field.name == "label" && !field.transforms.empty())
      r.Report(entry.value.Find("transforms")->where(),
               "not built yet: transforms of `label` of an idx source");
    if (r.count() == before) CheckField(r, entry, format, *t, field);
    t->fields.push_back(std::move(field));
  }
}

const Table<DataSpec>& DataTable() {
  static const Table<DataSpec> table = [] {
    Table<DataSpec> t{
        "spec.data",
        {SourceKey("train", &DataSpec::train, "what is trained on", true),
         SourceKey("eval", &DataSpec::eval,
                   "what is evaluated on; left out, and without a split: nothing is", false),
         FieldsKey()},
        kDataKeysNotBuilt};
    for (Key<DataSpec>& key : CommonDataKeys()) t.keys.push_back(std::move(key));
    return t;
  }();
  return table;
}

}  // namespace evergrad::config

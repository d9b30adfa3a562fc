// The tables of the keys of `spec.data`. The keys of a format or a transform come from its
// descriptor (common/data_formats).
#include <algorithm>
#include <utility>

#include "absl/strings/str_replace.h"
#include "common/config/job_schema.h"
#include "common/data_formats/data_format.h"
#include "common/schema/reference_text.h"

namespace evergrad::config {
namespace {

constexpr std::size_t kFieldsMax = 4096;

// ---- sources

const Variant<SourceSpec>& SourceVariant() {
  static const Variant<SourceSpec> variant = [] {
    Variant<SourceSpec> v{"a data source",       "format", &SourceSpec::format, {},
                          DataFormatsNotBuilt(), ""};
    for (const DataFormat* format : DataFormats())
      v.cases.push_back({format->name, format->source, format->defaults});
    return v;
  }();
  return variant;
}

// Writes the reference of a source: the first format as an example, and the other formats as
// comments below the example. For the section `eval`, only the first format is shown.
void ExplainSource(const std::string& section, const std::string& indent, std::string* out) {
  const Variant<SourceSpec>& variant = SourceVariant();
  for (const auto& c : variant.cases) {
    std::string text;
    absl::StrAppend(&text, "# the format of the source (one of ",
                    absl::StrJoin(variant.Types(), ", "), "; required)\nformat: ", c.type, "\n");
    c.table.Explain(c.defaults, "", &text);
    if (&c == &variant.cases.front()) {
      if (section == "eval") text = absl::StrReplaceAll(text, {{"train-", "t10k-"}});
      AppendLines(text, indent, out);
    } else if (section != "eval") {
      absl::StrAppend(out, indent, "# or\n");
      AppendLines(text, indent + "#   ", out);
    }
  }
}

Key<DataSpec> SourceKey(const std::string& name, std::optional<SourceSpec> DataSpec::*member,
                        std::string help, bool required) {
  Key<DataSpec> key{
      name,
      absl::StrCat("mapping with format: ", absl::StrJoin(SourceVariant().Types(), ", ")),
      std::move(help),
      required,
      [=](Reader& r, const Node& n, DataSpec* t) {
        if (!r.IsMap(n, absl::StrCat("data.", name))) return;
        SourceSpec source;
        // If the format is unknown, `format` stays empty, and the rules between the source's values
        // are not checked.
        SourceVariant().Read(r, n, &source);
        source.where = n.where();
        t->*member = std::move(source);
      },
      [=](const DataSpec& t) {
        // The evaluation source that a split has made is not written. The reader makes it again
        // when it reads the split.
        if (!(t.*member).has_value() || (t.*member)->split.taken) return std::optional<Node>();
        return std::optional<Node>(SourceVariant().Write(*(t.*member)));
      }};
  key.explain_inner = [name](std::string* out, const std::string& indent) {
    ExplainSource(name, indent, out);
  };
  return key;
}

// ---- fields

void ExplainFields(std::string* out, const std::string& indent) {
  for (const DataFormat* format : DataFormats()) {
    std::string text;
    format->explain_field(&text);
    const bool first = format == DataFormats().front();
    if (!first) absl::StrAppend(out, indent, "# a field of a ", format->name, " source:\n");
    AppendLines(text, first ? indent : indent + "# ", out);
  }
}

std::optional<Node> WriteFields(const DataSpec& data) {
  if (data.fields.empty()) return std::nullopt;
  Node map;
  for (const FieldSpec& field : data.fields) {
    Node inner;
    FormatOfField(data, field).field.Write(field, &inner);
    Append(&map, field.name, std::move(inner));
  }
  return map;
}

Key<DataSpec> FieldsKey() {
  Key<DataSpec> key{
      "fields",
      "mapping of field name to its settings",
      "the fields of an example, each with its transforms in order; an idx source has the fields "
      "image and label (docs/data.md)",
      false,
      [](Reader&, const Node&, DataSpec*) {},  // ReadFields reads this key after the sources.
      &WriteFields};
  key.explain_inner = ExplainFields;
  return key;
}

// Reads a field whose format is unknown. Every format that has the keys of the field checks them.
// Formats whose fields are named by the job file come first, because they accept more values than
// formats with fixed fields.
void JudgeField(Reader& r, const Node& node, FieldSpec* field) {
  std::vector<const Table<FieldSpec>*> tables, fixed;
  for (const DataFormat* format : DataFormats())
    (format->own_fields.empty() ? tables : fixed).push_back(&format->field);
  tables.insert(tables.end(), fixed.begin(), fixed.end());
  Judge(r, node, tables, field);
}

// Reads one entry of `fields`. Returns nullopt if the name of the field is refused.
std::optional<FieldSpec> ReadField(Reader& r, const YamlEntry& entry, const DataFormat* format,
                                   const DataSpec& data) {
  const bool fixed = format != nullptr && !format->own_fields.empty();
  if (fixed && std::find(format->own_fields.begin(), format->own_fields.end(), entry.key) ==
                   format->own_fields.end()) {
    r.Report(entry.where(),
             absl::StrCat("unknown field `", entry.key.substr(0, 60), "`: ", format->source.what,
                          " has ", absl::StrJoin(format->own_fields, " and "),
                          Suggestion(entry.key, format->own_fields)));
    return std::nullopt;
  }
  if (!IsPartName(entry.key)) {
    r.Report(entry.where(),
             absl::StrCat(
                 "name of a field: expected a letter, then letters, digits, `_`, `-` or `.`, got `",
                 entry.key.substr(0, 60), "`"));
    return std::nullopt;
  }
  FieldSpec field;
  field.name = entry.key;
  if (format == nullptr) {
    JudgeField(r, entry.value, &field);
    return field;
  }
  const std::size_t before = r.count();
  if (entry.value.kind != Node::Kind::kNull || !fixed) format->field.Read(r, entry.value, &field);
  if (r.count() == before && format->check_field != nullptr)
    format->check_field(r, entry, data, field);
  return field;
}

Key<DataSpec> ShuffleKey() {
  return {"shuffle",
          "{seed: integer}, or off",
          "the order of the examples, which is different in each epoch and depends only on seed "
          "and epoch",
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
  const DataFormat* const format = FindDataFormat(t->train  ? t->train->format
                                                  : t->eval ? t->eval->format
                                                            : "");
  if (fields == nullptr) {
    if (format != nullptr && format->own_fields.empty())
      r.Report(data.where(), absl::StrCat("missing key `fields` in spec.data: the fields of ",
                                          format->source.what, " are named there"));
    return;
  }
  if (!r.IsMap(*fields, "data.fields")) return;
  if (fields->entries.size() > kFieldsMax)
    return r.Report(fields->where(), absl::StrCat("too many fields: limit=", kFieldsMax,
                                                  " got=", fields->entries.size()));
  for (const YamlEntry& entry : fields->entries)
    if (auto field = ReadField(r, entry, format, *t)) t->fields.push_back(*std::move(field));
}

const Table<DataSpec>& DataTable() {
  static const Table<DataSpec> table = [] {
    Table<DataSpec> t{
        "spec.data",
        {SourceKey("train", &DataSpec::train, "training data", true),
         SourceKey("eval", &DataSpec::eval,
                   "evaluation data; if omitted, and without a split, nothing is evaluated", false),
         FieldsKey()},
        kDataKeysNotBuilt};
    for (Key<DataSpec>& key : CommonDataKeys()) t.keys.push_back(std::move(key));
    return t;
  }();
  return table;
}

}  // namespace evergrad::config

#include "common/data_formats/field_keys.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/data_formats/transform_type.h"
#include "common/data_formats/typed_field.h"

namespace evergrad::config {
namespace {

constexpr std::size_t kColumnsMax = 4096;

void ReadColumns(Reader& r, const Node& n, FieldSpec* t) {
  std::vector<const Node*> items;
  t->list = n.kind == Node::Kind::kSequence;
  if (t->list) {
    for (const Node& item : n.items) items.push_back(&item);
  } else {
    items.push_back(&n);
  }
  if (items.empty() || items.size() > kColumnsMax)
    return r.Report(n.where(), absl::StrCat("`column`: expected 1 to ", kColumnsMax,
                                            " columns, got ", items.size()));
  t->columns.clear();
  for (const Node* item : items)
    if (const auto v = r.Text(*item, "column")) t->columns.push_back(*v);
}

std::optional<Node> WriteColumns(const FieldSpec& t) {
  std::vector<Node> items;
  for (const std::string& column : t.columns) items.push_back(MakeText(column));
  return t.list || items.empty() ? MakeList(std::move(items)) : items[0];
}

// Checks a default by reading it like a value of the file.
void CheckDefault(Reader& r, const Location& at, const FieldSpec& field) {
  const std::string got = absl::StrCat(", got `", field.default_text->substr(0, 60), "`");
  const auto integer = field.type == "int" ? IntegerOf(*field.default_text) : std::nullopt;
  if (field.type == "int" && !integer)
    return r.Report(at, absl::StrCat("`default`: a field of type int expects an integer", got));
  if (field.type == "float" && !RealOf(*field.default_text))
    return r.Report(at, absl::StrCat("`default`: a field of type float expects a number", got));
  if (field.transforms.empty() || field.transforms.front().type != "map") return;
  // The transform `map` looks up the canonical text of an integer: 7 for `07`.
  const std::string key = integer ? absl::StrCat(*integer) : *field.default_text;
  const auto& entries = field.transforms.front().entries;
  if (std::none_of(entries.begin(), entries.end(),
                   [&](const auto& entry) { return entry.first == key; }))
    r.Report(at, absl::StrCat("`default`: expected one of the texts of `map`", got));
}

}  // namespace

Key<FieldSpec> ColumnKey(std::string type, std::string help) {
  return Required(Key<FieldSpec>{"column", std::move(type), std::move(help), false, &ReadColumns,
                                 &WriteColumns});
}

Key<FieldSpec> ColumnTypeKey(std::string help) {
  return Required(Choice<FieldSpec>("type", &FieldSpec::type, {"int", "float", "string"},
                                    {"date", "bool"}, "field.", std::move(help)));
}

Key<FieldSpec> DefaultKey() {
  return {"default",
          "text",
          "text that replaces a missing value. If omitted, a missing value gets id 0 in a field "
          "with a vocabulary, and is a user error in other fields",
          false,
          [](Reader& r, const Node& n, FieldSpec* t) {
            if (const auto v = r.Text(n, "default")) t->default_text = *v;
          },
          [](const FieldSpec& t) {
            return t.default_text ? std::optional<Node>(MakeText(*t.default_text)) : std::nullopt;
          }};
}

void CheckTypedField(Reader& r, const YamlEntry& entry, const FieldSpec& field) {
  if (const auto kind = KindOfField(field); !kind.ok()) {
    const Node* at = entry.value.Find("transforms");
    if (at == nullptr) at = entry.value.Find("type");
    r.Report(at != nullptr ? at->where() : entry.where(), std::string(kind.status().message()));
  }
  if (field.default_text) CheckDefault(r, entry.value.Find("default")->where(), field);
}

std::optional<ValueKind> TypedFieldKind(const FieldSpec& field) {
  const auto kind = KindOfField(field);
  return kind.ok() ? std::optional(*kind) : std::nullopt;
}

void ExplainField(const char* name, Table<FieldSpec> table, const FieldSpec& defaults,
                  const std::map<std::string, std::string>& examples, bool explain_transforms,
                  std::string* out) {
  absl::StrAppend(out, name, ":\n");
  for (Key<FieldSpec>& key : table.keys) {
    if (const auto found = examples.find(key.name); found != examples.end())
      key.example = found->second;
    if (key.name != "transforms" || !explain_transforms) continue;
    key.explain_inner = [](std::string* to, const std::string& indent) {
      for (const TransformType* type : TransformTypes())
        absl::StrAppend(to, indent, "- ", type->example, "  # ", type->help, "\n");
    };
  }
  table.Explain(defaults, "  ", out);
}

}  // namespace evergrad::config

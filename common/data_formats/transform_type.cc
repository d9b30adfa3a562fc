#include "common/data_formats/transform_type.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/data_formats/all_transforms.h"
#include "common/data_formats/data_format.h"
#include "common/schema/names.h"

namespace evergrad::config {
namespace {

constexpr std::size_t kTransformsMax = 32;

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Returns the reason why a transform cannot be used here: it is not built, belongs to other
// formats, or is unknown.
std::string Refusal(const std::string& name, const std::vector<std::string>& allowed) {
  if (std::find(std::begin(kTransformsNotBuilt), std::end(kTransformsNotBuilt), name) !=
      std::end(kTransformsNotBuilt))
    return absl::StrCat("not built yet: transform `", name, "`");
  if (FindTransformType(name) == nullptr)
    return absl::StrCat("unknown transform `", name.substr(0, 60), "`", Suggestion(name, allowed));
  std::vector<std::string> formats;
  for (const DataFormat* format : DataFormats())
    if (Contains(format->transforms, name)) formats.push_back(format->name);
  return absl::StrCat("transform `", name, "` is only for fields of format ",
                      absl::StrJoin(formats, " or "));
}

// Reads `name: settings` and appends it to the field's transforms.
void ReadEntry(Reader& r, const YamlEntry& entry, const std::vector<std::string>& allowed,
               FieldSpec* field) {
  if (!Contains(allowed, entry.key)) return r.Report(entry.where(), Refusal(entry.key, allowed));
  const TransformType& type = *FindTransformType(entry.key);
  Transform transform;
  transform.type = entry.key;
  if (type.settings_example.empty()) {
    if (entry.value.kind != Node::Kind::kNull)
      return r.Report(entry.value.where(),
                      absl::StrCat("`", entry.key, "` has no value: write `- ", entry.key, "`"));
  } else if (!type.read(r, entry.value, &transform)) {
    return;
  }
  field->transforms.push_back(std::move(transform));
}

// Reads a list item that is a name without settings, such as `- log1p`.
void ReadName(Reader& r, const Node& item, const std::vector<std::string>& allowed,
              FieldSpec* field) {
  const TransformType* const type = FindTransformType(item.text);
  if (type != nullptr && !type->settings_example.empty())
    return r.Report(item.where(), absl::StrCat("transform `", item.text,
                                               "` needs its settings: expected something like {",
                                               item.text, ": ", type->settings_example, "}"));
  YamlEntry entry{item.text, item.line, item.column, item.file, {}};
  entry.value.line = item.line;
  entry.value.column = item.column;
  entry.value.file = item.file;
  ReadEntry(r, entry, allowed, field);
}

void ReadTransforms(Reader& r, const Node& n, const std::vector<std::string>& allowed,
                    FieldSpec* field) {
  if (!r.IsList(n, "transforms", "mappings like {scale: 0.5}")) return;
  if (n.items.size() > kTransformsMax)
    return r.Report(n.where(), absl::StrCat("too many transforms: limit=", kTransformsMax,
                                            " got=", n.items.size()));
  for (const Node& item : n.items) {
    if (item.kind == Node::Kind::kScalar) {
      ReadName(r, item, allowed, field);
      continue;
    }
    if (!r.IsMap(item, "a transform")) continue;
    for (const YamlEntry& entry : item.entries) ReadEntry(r, entry, allowed, field);
    if (item.entries.size() != 1)
      r.Report(item.where(), absl::StrCat("a transform has exactly one key, its name: keys=",
                                          item.entries.size()));
  }
}

Node WriteTransform(const Transform& transform) {
  const TransformType* const type = FindTransformType(transform.type);
  if (type == nullptr || type->settings_example.empty()) return MakeText(transform.type);
  Node one;
  Append(&one, transform.type, type->write(transform));
  return one;
}

}  // namespace

const std::vector<const TransformType*>& TransformTypes() {
  static const std::vector<const TransformType*> types = [] {
    std::vector<const TransformType*> all;
    for (const auto& type : kAllTransforms) all.push_back(&type());
    return all;
  }();
  return types;
}

std::vector<std::string> TransformNames() {
  std::vector<std::string> names;
  for (const TransformType* type : TransformTypes()) names.push_back(type->name);
  return names;
}

const TransformType* FindTransformType(absl::string_view name) {
  for (const TransformType* type : TransformTypes())
    if (type->name == name) return type;
  return nullptr;
}

absl::StatusOr<ValueKind> KindAfter(const Transform& transform, ValueKind kind) {
  const TransformType* const type = FindTransformType(transform.type);
  if (type == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("unknown transform `", transform.type, "`"));
  const bool numbers = type->takes == TransformType::Takes::kNumbers;
  if (kind == (numbers ? ValueKind::kText : ValueKind::kReal))
    return absl::InvalidArgumentError(absl::StrCat("transform `", transform.type, "` takes ",
                                                   numbers ? "a number" : "a text or an integer",
                                                   ", but its input is ", NameOf(kind)));
  return type->gives(transform, kind);
}

Key<FieldSpec> TransformsKey(const std::vector<std::string>& allowed) {
  return {"transforms",
          "list",
          "in order",
          false,
          [=](Reader& r, const Node& n, FieldSpec* t) { ReadTransforms(r, n, allowed, t); },
          [](const FieldSpec& t) {
            std::vector<Node> items;
            for (const Transform& transform : t.transforms)
              items.push_back(WriteTransform(transform));
            return std::optional<Node>(MakeList(std::move(items)));
          }};
}

bool ReadSettings(const Table<Transform>& table, Reader& reader, const Node& node,
                  Transform* transform) {
  const std::size_t before = reader.count();
  table.Read(reader, node, transform);
  return reader.count() == before;
}

bool ReadNumber(Reader& reader, const Node& node, Transform* transform) {
  const auto value = reader.Real(node, transform->type);
  if (value) transform->value = *value;
  return value.has_value();
}

Node WriteNumber(const Transform& transform) { return MakePlain(FormatReal(transform.value)); }

void DescribeNumber(const Transform& transform, nlohmann::ordered_json* object) {
  (*object)["value"] = transform.value;
}

}  // namespace evergrad::config

// `map: {"yes": 1, "no": 0}`
#include <algorithm>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/data_formats/all_transforms.h"

namespace evergrad::config {
namespace {

bool ReadMap(Reader& r, const Node& n, Transform* t) {
  if (!r.IsMap(n, "map")) return false;
  if (n.entries.empty() || n.entries.size() > kTransformEntriesMax) {
    r.Report(n.where(), absl::StrCat("`map`: expected 1 to ", kTransformEntriesMax,
                                     " entries, got ", n.entries.size()));
    return false;
  }
  for (const YamlEntry& entry : n.entries) {
    const auto v = r.Real(entry.value, "map");
    if (!v) return false;
    t->entries.emplace_back(entry.key, *v);
  }
  return true;
}

Node WriteMap(const Transform& t) {
  Node entries;
  entries.kind = Node::Kind::kMap;
  for (const auto& [text, number] : t.entries)
    Append(&entries, text, MakePlain(FormatReal(number)));
  return entries;
}

ValueKind GivesMap(const Transform& t, ValueKind) {
  const bool integers = std::all_of(t.entries.begin(), t.entries.end(),
                                    [](const auto& entry) { return IsExactInteger(entry.second); });
  return integers ? ValueKind::kInteger : ValueKind::kReal;
}

void DescribeMap(const Transform& t, nlohmann::ordered_json* object) {
  nlohmann::ordered_json& entries = (*object)["entries"] = nlohmann::ordered_json::array();
  for (const auto& [text, number] : t.entries)
    entries.push_back(nlohmann::ordered_json::array({text, number}));
}

}  // namespace

const TransformType& MapTransform() {
  static const TransformType type{
      .name = "map",
      .takes = TransformType::Takes::kNames,
      .gives = &GivesMap,
      .settings_example = "{\"yes\": 1, \"no\": 0}",
      .read = &ReadMap,
      .write = &WriteMap,
      .describe = &DescribeMap,
      .example = "{map: {\"yes\": 1, \"no\": 0}}",
      .help = "text or integer -> number; any other text is an error (1 to 4096 entries)"};
  return type;
}

}  // namespace evergrad::config

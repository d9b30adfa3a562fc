// `hash: {buckets: 1000}`
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/data_formats/all_transforms.h"

namespace evergrad::config {
namespace {

const Table<Transform>& SettingsTable() {
  static const Table<Transform> table{
      "`hash`",
      {Required(Integer<Transform>("buckets", &Transform::buckets, 1, 1ull << 62, ""))},
      {"salt", "seed"}};
  return table;
}

}  // namespace

const TransformType& HashTransform() {
  static const TransformType type{
      .name = "hash",
      .takes = TransformType::Takes::kNames,
      .gives = [](const Transform&, ValueKind) { return ValueKind::kInteger; },
      .settings_example = "{buckets: 1000}",
      .read = [](Reader& r, const Node& n,
                 Transform* t) { return ReadSettings(SettingsTable(), r, n, t); },
      .write =
          [](const Transform& t) {
            Node settings;
            Append(&settings, "buckets", MakePlain(absl::StrCat(t.buckets)));
            return settings;
          },
      .describe = [](const Transform& t,
                     nlohmann::ordered_json* object) { (*object)["buckets"] = t.buckets; },
      .example = "{hash: {buckets: 1000}}",
      .help =
          "text or integer -> integer: 0 to 999 (buckets: integer from 1 to 4611686018427387904; "
          "required)"};
  return type;
}

}  // namespace evergrad::config

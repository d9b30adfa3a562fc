// `vocabulary: {min_count: 2}`
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/data_formats/all_transforms.h"

namespace evergrad::config {
namespace {

const Table<Transform>& SettingsTable() {
  static const Table<Transform> table{
      "`vocabulary`",
      {Integer<Transform>("min_count", &Transform::min_count, 1, kAny, "")},
      {"max_size", "file", "words"}};
  return table;
}

}  // namespace

const TransformType& VocabularyTransform() {
  static const TransformType type{
      .name = "vocabulary",
      .takes = TransformType::Takes::kNames,
      .gives = [](const Transform&, ValueKind) { return ValueKind::kInteger; },
      .settings_example = "{min_count: 1}",
      .read = [](Reader& r, const Node& n,
                 Transform* t) { return ReadSettings(SettingsTable(), r, n, t); },
      .write =
          [](const Transform& t) {
            Node settings;
            Append(&settings, "min_count", MakePlain(absl::StrCat(t.min_count)));
            return settings;
          },
      .describe = [](const Transform& t,
                     nlohmann::ordered_json* object) { (*object)["min_count"] = t.min_count; },
      .example = "{vocabulary: {min_count: 2}}",
      .help =
          "text or integer -> integer: 1, 2, … in order of falling count in the training data, and "
          "0 for "
          "values that are missing, unknown or rarer than min_count (min_count: integer of at "
          "least 1; default 1)",
      .learned = true};
  return type;
}

}  // namespace evergrad::config

// `bucketize: [18, 25, 30]`
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/data_formats/all_transforms.h"

namespace evergrad::config {
namespace {

bool ReadBounds(Reader& r, const Node& n, Transform* t) {
  if (!r.IsList(n, "bucketize", "rising numbers")) return false;
  if (n.items.empty() || n.items.size() > kTransformEntriesMax) {
    r.Report(n.where(), absl::StrCat("`bucketize`: expected 1 to ", kTransformEntriesMax,
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

Node WriteBounds(const Transform& t) {
  std::vector<Node> bounds;
  for (const double bound : t.bounds) bounds.push_back(MakePlain(FormatReal(bound)));
  return MakeList(std::move(bounds));
}

}  // namespace

const TransformType& BucketizeTransform() {
  static const TransformType type{
      .name = "bucketize",
      .takes = TransformType::Takes::kNumbers,
      .gives = [](const Transform&, ValueKind) { return ValueKind::kInteger; },
      .settings_example = "[18, 25]",
      .read = &ReadBounds,
      .write = &WriteBounds,
      .describe = [](const Transform& t,
                     nlohmann::ordered_json* object) { (*object)["bounds"] = t.bounds; },
      .example = "{bucketize: [18, 25, 30]}",
      .help =
          "number -> integer: 0 below 18, 1 from 18 on, …, 3 from 30 on (1 to 4096 rising "
          "numbers)"};
  return type;
}

}  // namespace evergrad::config

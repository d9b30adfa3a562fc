#include "common/data_formats/typed_field.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/data_formats/transform_type.h"

namespace evergrad::config {
namespace {

bool IsLearned(const Transform& transform) {
  const TransformType* const type = FindTransformType(transform.type);
  return type != nullptr && type->learned;
}

// Returns "hash, vocabulary or map".
std::string TransformsOfTexts() {
  std::vector<std::string> names;
  for (const TransformType* type : TransformTypes())
    if (type->takes == TransformType::Takes::kNames) names.push_back(type->name);
  const std::string last = names.back();
  names.pop_back();
  return absl::StrCat(absl::StrJoin(names, ", "), " or ", last);
}

}  // namespace

ValueKind KindOf(const FieldSpec& field) {
  return field.type == "string" ? ValueKind::kText
         : field.type == "int"  ? ValueKind::kInteger
                                : ValueKind::kReal;
}

absl::StatusOr<ValueKind> KindOfField(const FieldSpec& field) {
  ValueKind kind = KindOf(field);
  int learned = 0;
  for (const Transform& transform : field.transforms) {
    auto after = KindAfter(transform, kind);
    if (!after.ok()) return after.status();
    kind = *after;
    if (IsLearned(transform) && ++learned > 1)
      return absl::InvalidArgumentError(
          absl::StrCat("a field has at most one transform `", transform.type, "`"));
  }
  if (kind == ValueKind::kText)
    return absl::InvalidArgumentError(absl::StrCat(
        "a field of type string needs a transform that converts the text to a number: ",
        TransformsOfTexts()));
  return kind;
}

std::size_t LearnedTransform(const FieldSpec& field) {
  std::size_t at = 0;
  while (at < field.transforms.size() && !IsLearned(field.transforms[at])) ++at;
  return at;
}

}  // namespace evergrad::config

#include "common/config/field_kind.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/schema/scalar.h"

namespace evergrad::config {
namespace {

constexpr const char* kKindNames[] = {"a text", "an integer", "a real number"};

}  // namespace

ValueKind KindOf(const FieldSpec& field) {
  return field.type == "string" ? ValueKind::kText
         : field.type == "int"  ? ValueKind::kInteger
                                : ValueKind::kReal;
}

absl::StatusOr<ValueKind> KindAfter(const Transform& transform, ValueKind kind) {
  const auto integral = [](double v) {
    return v == std::floor(v) && std::abs(v) <= 9007199254740992.0;
  };
  const bool number = kind != ValueKind::kText, name = kind != ValueKind::kReal;
  if (transform.type == "scale" && number) return ValueKind::kReal;
  if (transform.type == "log1p" && number) return ValueKind::kReal;
  if (transform.type == "offset" && number)
    return kind == ValueKind::kInteger && integral(transform.value) ? kind : ValueKind::kReal;
  if (transform.type == "bucketize" && number) return ValueKind::kInteger;
  if (transform.type == "hash" && name) return ValueKind::kInteger;
  if (transform.type == "vocabulary" && name) return ValueKind::kInteger;
  if (transform.type == "map" && name) {
    const bool integers = std::all_of(transform.entries.begin(), transform.entries.end(),
                                      [&](const auto& entry) { return integral(entry.second); });
    return integers ? ValueKind::kInteger : ValueKind::kReal;
  }
  const bool takes_numbers = transform.type == "scale" || transform.type == "log1p" ||
                             transform.type == "offset" || transform.type == "bucketize";
  return absl::InvalidArgumentError(
      absl::StrCat("transform `", transform.type, "` takes ",
                   takes_numbers ? "a number" : "a text or an integer", ", here it meets ",
                   kKindNames[static_cast<int>(kind)]));
}

absl::StatusOr<ValueKind> KindOfField(const FieldSpec& field) {
  ValueKind kind = KindOf(field);
  int vocabularies = 0;
  for (const Transform& transform : field.transforms) {
    auto after = KindAfter(transform, kind);
    if (!after.ok()) return after.status();
    kind = *after;
    if (transform.type == "vocabulary" && ++vocabularies > 1)
      return absl::InvalidArgumentError("a field has one vocabulary at most");
  }
  if (kind == ValueKind::kText)
    return absl::InvalidArgumentError(
        "a field of type string needs a transform that makes a number of it: vocabulary, hash or "
        "map");
  return kind;
}

std::optional<std::int64_t> IntegerOf(absl::string_view text) {
  const absl::string_view digits = absl::StartsWith(text, "+") ? text.substr(1) : text;
  if (absl::StartsWith(digits, "-") && digits.size() != text.size()) return std::nullopt;
  std::int64_t number = 0;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || stop != digits.data() + digits.size()) return std::nullopt;
  return number;
}

std::optional<double> RealOf(absl::string_view text) {
  const auto real = ParseReal(text);
  return real.ok() ? std::optional<double>(*real) : std::nullopt;
}

}  // namespace evergrad::config

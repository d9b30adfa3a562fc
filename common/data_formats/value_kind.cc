#include "common/data_formats/value_kind.h"

#include <charconv>
#include <cmath>

#include "absl/strings/match.h"
#include "common/schema/scalar.h"

namespace evergrad::config {

absl::string_view NameOf(ValueKind kind) {
  switch (kind) {
    case ValueKind::kText: return "a text";
    case ValueKind::kInteger: return "an integer";
    case ValueKind::kReal: break;
  }
  return "a real number";
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

bool IsExactInteger(double value) {
  return value == std::floor(value) && std::abs(value) <= 9007199254740992.0;
}

}  // namespace evergrad::config

#include "common/schema/scalar.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/escape.h"
#include "common/base/nearest_name.h"

namespace evergrad::config {
namespace {

struct Unit {
  const char* suffix;
  double factor;
};

// Splits "1.5GiB" into its number and its suffix.
bool SplitUnit(absl::string_view text, absl::string_view* number, absl::string_view* suffix) {
  std::size_t i = 0;
  while (i < text.size() &&
         (absl::ascii_isdigit(static_cast<unsigned char>(text[i])) || text[i] == '.'))
    ++i;
  *number = text.substr(0, i);
  *suffix = absl::StripAsciiWhitespace(text.substr(i));
  return i > 0;
}

bool LooksReal(absl::string_view text) {
  // The accepted form is [+-] digits [. digits] [e [+-] digits]. Hexadecimal numbers, inf, nan and
  // underscores are refused.
  std::size_t i = 0;
  if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
  std::size_t digits = 0;
  while (i < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[i]))) ++i, ++digits;
  if (i < text.size() && text[i] == '.') {
    ++i;
    while (i < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[i])))
      ++i, ++digits;
  }
  if (digits == 0) return false;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    std::size_t exponent = 0;
    while (i < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[i])))
      ++i, ++exponent;
    if (exponent == 0) return false;
  }
  return i == text.size();
}

}  // namespace

std::string Shown(absl::string_view text) { return Quoted(text, 60); }

absl::StatusOr<std::uint64_t> ParseUnsigned(absl::string_view text, std::uint64_t min,
                                            std::uint64_t max) {
  const std::string range =
      max == std::numeric_limits<std::uint64_t>::max()
          ? (min == 0 ? "an integer" : absl::StrCat("an integer of at least ", min))
          : absl::StrCat("an integer from ", min, " to ", max);
  const bool digits =
      !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos;
  if (digits && text.size() > 1 && text[0] == '0')
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", range, ", got `", Shown(text),
                     "`: leading zeros are refused, because YAML 1.1 reads them as octal"));
  std::uint64_t value = 0;
  if (!digits || !absl::SimpleAtoi(text, &value) || value < min || value > max)
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", range, ", got `", Shown(text), "`"));
  return value;
}

absl::StatusOr<double> ParseReal(absl::string_view text) {
  double value = 0;
  if (!LooksReal(text) || !absl::SimpleAtod(text, &value) || !std::isfinite(value))
    return absl::InvalidArgumentError(absl::StrCat("expected a number, got `", Shown(text), "`"));
  return value;
}

absl::StatusOr<bool> ParseBool(absl::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  const std::string lower = absl::AsciiStrToLower(text);
  std::string hint;
  if (lower == "yes" || lower == "on" || lower == "y" || lower == "1" || lower == "true")
    hint = "; did you mean `true`?";
  if (lower == "no" || lower == "off" || lower == "n" || lower == "0" || lower == "false")
    hint = "; did you mean `false`?";
  return absl::InvalidArgumentError(
      absl::StrCat("expected true or false, got `", Shown(text), "`", hint));
}

absl::StatusOr<std::uint64_t> ParseByteSize(absl::string_view text) {
  static constexpr Unit kUnits[] = {{"", 1},
                                    {"B", 1},
                                    {"KiB", 1024.0},
                                    {"MiB", 1048576.0},
                                    {"GiB", 1073741824.0},
                                    {"TiB", 1099511627776.0},
                                    {"KB", 1000.0},
                                    {"MB", 1e6},
                                    {"GB", 1e9},
                                    {"TB", 1e12}};
  const absl::Status refusal = absl::InvalidArgumentError(
      absl::StrCat("expected a size like 65536, 64KiB or 1GiB, got `", Shown(text), "`"));
  absl::string_view number, suffix;
  if (!SplitUnit(text, &number, &suffix)) return refusal;
  for (const Unit& unit : kUnits) {
    if (suffix != unit.suffix) continue;
    if (number.find('.') == absl::string_view::npos) {
      const auto whole = ParseUnsigned(number, 0, std::numeric_limits<std::uint64_t>::max());
      if (!whole.ok() || static_cast<double>(*whole) * unit.factor > 9.0e18) return refusal;
      return *whole * static_cast<std::uint64_t>(unit.factor);
    }
    const auto real = ParseReal(number);
    if (!real.ok()) return refusal;
    const double bytes = *real * unit.factor;
    if (bytes > 9.0e15 || bytes != std::floor(bytes)) return refusal;
    return static_cast<std::uint64_t>(bytes);
  }
  std::vector<std::string> names;
  for (const Unit& unit : kUnits)
    if (*unit.suffix != '\0' && absl::EqualsIgnoreCase(unit.suffix, suffix))
      names.push_back(absl::StrCat(number, unit.suffix));
  if (names.empty()) return refusal;
  return absl::InvalidArgumentError(
      absl::StrCat(refusal.message(), "; did you mean `", names[0], "`?"));
}

absl::StatusOr<std::chrono::milliseconds> ParseDuration(absl::string_view text) {
  static constexpr Unit kUnits[] = {
      {"ms", 1}, {"s", 1e3}, {"m", 60e3}, {"h", 3600e3}, {"d", 86400e3}};
  const absl::Status refusal = absl::InvalidArgumentError(
      absl::StrCat("expected a duration like 200ms, 5s, 1m or 2h, got `", Shown(text), "`"));
  if (text == "0") return std::chrono::milliseconds(0);
  absl::string_view number, suffix;
  if (!SplitUnit(text, &number, &suffix)) return refusal;
  for (const Unit& unit : kUnits) {
    if (suffix != unit.suffix) continue;
    const auto real = ParseReal(number);
    if (!real.ok() || *real * unit.factor > 1e13) return refusal;
    return std::chrono::milliseconds(std::llround(*real * unit.factor));
  }
  if (suffix.empty())
    return absl::InvalidArgumentError(
        absl::StrCat(refusal.message(), ": the unit is missing; did you mean `", number, "s`?"));
  return refusal;
}

std::string FormatByteSize(std::uint64_t bytes) {
  if (bytes != 0 && bytes % (1ull << 40) == 0) return absl::StrCat(bytes >> 40, "TiB");
  if (bytes != 0 && bytes % (1ull << 30) == 0) return absl::StrCat(bytes >> 30, "GiB");
  if (bytes != 0 && bytes % (1ull << 20) == 0) return absl::StrCat(bytes >> 20, "MiB");
  if (bytes != 0 && bytes % (1ull << 10) == 0) return absl::StrCat(bytes >> 10, "KiB");
  return absl::StrCat(bytes);
}

std::string FormatDuration(std::chrono::milliseconds value) {
  const std::int64_t ms = value.count();
  if (ms == 0) return "0";
  if (ms % 3600000 == 0) return absl::StrCat(ms / 3600000, "h");
  if (ms % 60000 == 0) return absl::StrCat(ms / 60000, "m");
  if (ms % 1000 == 0) return absl::StrCat(ms / 1000, "s");
  return absl::StrCat(ms, "ms");
}

std::string FormatReal(double value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value);
  std::string text(buffer, end.ptr);
  // A whole number gets no decimal point, so that integers stay readable. ParseReal reads forms
  // such as 1 and 1e-07, too.
  return text;
}

std::string JoinWithOr(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    absl::StrAppend(&text, i == 0 ? "" : i + 1 < names.size() ? ", " : " or ", names[i]);
  return text;
}

std::string Suggestion(absl::string_view name, const std::vector<std::string>& candidates) {
  const std::string nearest = NearestName(name, candidates);
  return nearest.empty() ? "" : absl::StrCat("; did you mean `", nearest, "`?");
}

}  // namespace evergrad::config

#include "common/object_store/time_text.h"

#include <time.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace evergrad::object_store {
namespace {

// Removes a number of exactly `digits` digits from the beginning of `text`. Returns false if there
// is none, or if it is not from `min` to `max`.
bool TakeNumber(absl::string_view* text, std::size_t digits, int min, int max, int* number) {
  if (text->size() < digits) return false;
  *number = 0;
  for (const char c : text->substr(0, digits)) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
    *number = *number * 10 + (c - '0');
  }
  text->remove_prefix(digits);
  return *number >= min && *number <= max;
}

// Removes a fraction of a second, if there is one. Returns false if '.' has no digits after it.
bool TakeFraction(absl::string_view* text, int* milliseconds) {
  *milliseconds = 0;
  if (!absl::ConsumePrefix(text, ".")) return true;
  int digits = 0;
  for (int unit = 100; !text->empty(); unit /= 10, ++digits) {
    const char c = text->front();
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) break;
    *milliseconds += unit * (c - '0');
    text->remove_prefix(1);
  }
  return digits > 0 && digits <= 9;
}

// Removes "Z" or an offset like "+02:00".
bool TakeOffset(absl::string_view* text, std::int64_t* seconds) {
  *seconds = 0;
  if (absl::ConsumePrefix(text, "Z")) return true;
  const bool is_west = absl::ConsumePrefix(text, "-");
  int hours = 0, minutes = 0;
  if ((!is_west && !absl::ConsumePrefix(text, "+")) || !TakeNumber(text, 2, 0, 23, &hours) ||
      !absl::ConsumePrefix(text, ":") || !TakeNumber(text, 2, 0, 59, &minutes))
    return false;
  *seconds = (hours * 60 + minutes) * 60 * (is_west ? -1 : 1);
  return true;
}

}  // namespace

std::string BasicTime(std::int64_t wall_ms) {
  const time_t seconds = wall_ms / 1000;
  struct tm utc = {};
  gmtime_r(&seconds, &utc);
  return absl::StrFormat("%04d%02d%02dT%02d%02d%02dZ", utc.tm_year + 1900, utc.tm_mon + 1,
                         utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

std::optional<std::int64_t> ParseTime(absl::string_view text) {
  struct tm utc = {};
  int milliseconds = 0;
  std::int64_t offset = 0;
  if (!TakeNumber(&text, 4, 1970, 9999, &utc.tm_year) || !absl::ConsumePrefix(&text, "-") ||
      !TakeNumber(&text, 2, 1, 12, &utc.tm_mon) || !absl::ConsumePrefix(&text, "-") ||
      !TakeNumber(&text, 2, 1, 31, &utc.tm_mday) || !absl::ConsumePrefix(&text, "T") ||
      !TakeNumber(&text, 2, 0, 23, &utc.tm_hour) || !absl::ConsumePrefix(&text, ":") ||
      !TakeNumber(&text, 2, 0, 59, &utc.tm_min) || !absl::ConsumePrefix(&text, ":") ||
      !TakeNumber(&text, 2, 0, 59, &utc.tm_sec) || !TakeFraction(&text, &milliseconds) ||
      !TakeOffset(&text, &offset) || !text.empty())
    return std::nullopt;
  utc.tm_year -= 1900;
  utc.tm_mon -= 1;
  // timegm turns the 30th of February into a day of March, which is not the day of the text.
  const int day = utc.tm_mday;
  const time_t seconds = timegm(&utc);
  if (utc.tm_mday != day) return std::nullopt;
  return (static_cast<std::int64_t>(seconds) - offset) * 1000 + milliseconds;
}

}  // namespace evergrad::object_store

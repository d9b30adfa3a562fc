// Texts for people: tables, sizes, times. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace evergrad::psctl {

struct Column {
  std::string title;
  bool right = false;  // for numbers
};
// Returns a header line and one line per row. Columns are as narrow as possible, separated by two
// spaces, without trailing spaces.
std::vector<std::string> RenderTable(const std::vector<Column>& columns,
                                     const std::vector<std::vector<std::string>>& rows);

std::string ShowBytes(std::uint64_t bytes);  // "1.5 MiB"
// Returns a text like "0.3 s", "42 s", "3 min 05 s" or "2 h 07 min"; "?" below 0.
std::string ShowSeconds(double seconds);
std::string ShowAge(std::int64_t ms);  // like ShowSeconds, for a time in milliseconds
// Returns a text like "0.5246", or like "1.00e+30" for a number that needs more than 9 characters.
// Returns "-" for NaN.
std::string ShowNumber(double value, int digits);
std::string ShowPercent(double share);       // "87.60 %"; "-" for NaN
std::string ShowHex(std::uint64_t value);    // 16 digits
std::string ShowTime(std::int64_t wall_ms);  // "2026-11-21 12:03:11", local time; "-" for 0
// Width returns the number of terminal characters of `text` (UTF-8 continuation bytes count as
// none). Fit returns the beginning of `text` that fits.
std::size_t Width(absl::string_view text);
std::string Fit(absl::string_view text, std::size_t columns);
// Escapes control characters in the same way as Escaped (common/base/escape.h), because a text from
// a task or job must not move the cursor or hide the text beside it.
std::string Printable(absl::string_view text);

}  // namespace evergrad::psctl

#include "coordinator/psctl/text_table.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/escape.h"

namespace evergrad::psctl {

std::vector<std::string> RenderTable(const std::vector<Column>& columns,
                                     const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  widths.reserve(columns.size());
  for (const Column& column : columns) widths.push_back(Width(column.title));
  for (const auto& row : rows)
    for (std::size_t i = 0; i < columns.size() && i < row.size(); ++i)
      widths[i] = std::max(widths[i], Width(row[i]));
  auto line = [&](auto cell) {
    std::string out;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::string text = cell(i);
      const std::string space(widths[i] - std::min(widths[i], Width(text)), ' ');
      absl::StrAppend(&out, i == 0 ? "" : "  ", columns[i].right ? space : "", text,
                      columns[i].right ? "" : space);
    }
    while (!out.empty() && out.back() == ' ') out.pop_back();
    return out;
  };
  std::vector<std::string> lines{line([&](std::size_t i) { return columns[i].title; })};
  for (const auto& row : rows)
    lines.push_back(line([&](std::size_t i) { return i < row.size() ? row[i] : std::string(); }));
  return lines;
}

std::string ShowBytes(std::uint64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, ++unit;
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, units[unit]);
}

std::string ShowSeconds(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  if (seconds < 9.95) return absl::StrFormat("%.1f s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 60) return absl::StrFormat("%d s", whole);
  if (whole < 3600) return absl::StrFormat("%d min %02d s", whole / 60, whole % 60);
  return absl::StrFormat("%d h %02d min", whole / 3600, whole % 3600 / 60);
}

std::string ShowAge(std::int64_t ms) { return ShowSeconds(static_cast<double>(ms) / 1000.0); }

std::string ShowNumber(double value, int digits) {
  if (std::isnan(value)) return "-";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  constexpr std::size_t kWidthMax = 9;  // width of the narrowest column for a loss
  if (std::fabs(value) < 1e9) {
    if (std::string fixed = absl::StrFormat("%.*f", digits, value); fixed.size() <= kWidthMax)
      return fixed;
  }
  std::string text = absl::StrFormat("%.2e", value);
  return text.size() <= kWidthMax ? text : absl::StrFormat("%.1e", value);
}

std::string ShowPercent(double share) {
  return std::isfinite(share) ? absl::StrFormat("%.2f %%", share * 100) : "-";
}

std::string ShowHex(std::uint64_t value) { return absl::StrFormat("%016x", value); }

std::string ShowTime(std::int64_t wall_ms) {
  if (wall_ms <= 0) return "-";
  const std::time_t seconds = static_cast<std::time_t>(wall_ms / 1000);
  std::tm parts{};
  if (localtime_r(&seconds, &parts) == nullptr) return "-";
  char text[32];
  return std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &parts) == 0 ? "-" : text;
}

std::size_t Width(absl::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string Fit(absl::string_view text, std::size_t columns) {
  if (Width(text) <= columns) return std::string(text);
  std::string out;
  std::size_t used = 0;
  for (const char c : text) {
    const bool starts = (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    if (starts && ++used >= columns) break;
    out.push_back(c);
  }
  return columns == 0 ? "" : out + "…";
}

std::string Printable(absl::string_view text) { return Escaped(text); }

}  // namespace evergrad::psctl

#include "common/schema/reference_text.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace evergrad::config {
namespace {

// Returns the number of characters of `text`, which is UTF-8.
std::size_t Columns(absl::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string WrapLine(absl::string_view line, std::size_t columns_max) {
  std::size_t words = std::min(line.find_first_not_of(" #"), line.size());
  std::string indent(line.substr(0, words));
  if (const std::size_t behind = line.find("  # ", words); behind != absl::string_view::npos) {
    absl::StrAppend(&indent, std::string(Columns(line.substr(words, behind - words)), ' '), "  # ");
    words = behind + 4;
  } else if (!absl::EndsWith(indent, "# ")) {
    return std::string(line);
  }
  std::string wrapped(line.substr(0, words));
  std::size_t columns = Columns(indent);
  absl::string_view space = "";
  for (const absl::string_view word : absl::StrSplit(line.substr(words), ' ')) {
    if (!space.empty() && columns + 1 + Columns(word) > columns_max) {
      absl::StrAppend(&wrapped, "\n", indent, word);
      columns = Columns(indent) + Columns(word);
    } else {
      absl::StrAppend(&wrapped, space, word);
      columns += space.size() + Columns(word);
    }
    space = " ";
  }
  return wrapped;
}

}  // namespace

void AppendLines(absl::string_view text, absl::string_view prefix, std::string* out) {
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty()))
    absl::StrAppend(out, prefix, line, "\n");
}

std::string WrapComments(absl::string_view text, std::size_t columns_max) {
  return absl::StrJoin(
      absl::StrSplit(text, '\n'), "\n", [&](std::string* out, absl::string_view line) {
        *out += Columns(line) > columns_max ? WrapLine(line, columns_max) : std::string(line);
      });
}

}  // namespace evergrad::config

#include "common/object_store/profile_file.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace evergrad::object_store {
namespace {

bool IsBlank(char c) { return c == ' ' || c == '\t'; }

// Returns a line without its comment and without white space at its ends.
absl::string_view WithoutComment(absl::string_view line) {
  for (std::size_t i = 0; i < line.size(); ++i)
    if ((line[i] == '#' || line[i] == ';') && (i == 0 || IsBlank(line[i - 1])))
      return absl::StripAsciiWhitespace(line.substr(0, i));
  return absl::StripAsciiWhitespace(line);
}

absl::Status BadLine(int number) {
  return absl::InvalidArgumentError(
      absl::StrCat("a line is neither [PROFILE] nor KEY = VALUE: line=", number));
}

// A reader of lines. It keeps the keys of one section.
class ProfileReader {
 public:
  explicit ProfileReader(absl::string_view profile) : profile_(profile) {}

  // Returns false if the line is malformed.
  bool Read(absl::string_view line) {
    const bool is_indented = !line.empty() && IsBlank(line[0]);
    const absl::string_view text = WithoutComment(line);
    if (text.empty()) return true;
    if (text[0] == '[') return ReadSection(text);
    if (is_indented && nests_) return true;
    const std::size_t equals = text.find('=');
    if (!in_section_ || equals == absl::string_view::npos || equals == 0) return false;
    const absl::string_view value = absl::StripAsciiWhitespace(text.substr(equals + 1));
    nests_ = value.empty();
    if (is_wanted_)
      (*found_)[absl::AsciiStrToLower(absl::StripAsciiWhitespace(text.substr(0, equals)))] =
          std::string(value);
    return true;
  }
  std::optional<Profile> Take() { return std::move(found_); }

 private:
  bool ReadSection(absl::string_view text) {
    if (text.size() < 3 || text.back() != ']') return false;
    is_wanted_ = absl::StripAsciiWhitespace(text.substr(1, text.size() - 2)) == profile_;
    if (is_wanted_ && !found_) found_.emplace();
    in_section_ = true;
    nests_ = false;
    return true;
  }

  const absl::string_view profile_;
  std::optional<Profile> found_;
  bool in_section_ = false;
  bool is_wanted_ = false;  // the section is the profile's
  bool nests_ = false;      // the last key has no value, so that indented lines belong to it
};

}  // namespace

absl::StatusOr<std::optional<Profile>> FindProfile(absl::string_view text,
                                                   absl::string_view profile) {
  absl::ConsumePrefix(&text, "\xEF\xBB\xBF");  // a byte order mark
  ProfileReader reader(profile);
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (!reader.Read(line)) return BadLine(number);
  }
  return reader.Take();
}

}  // namespace evergrad::object_store

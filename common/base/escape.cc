#include "common/base/escape.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_format.h"
#include "common/base/utf8.h"

namespace evergrad {
namespace {

struct Range {
  char32_t first, last;
};
// Control characters, and the characters of Unicode's category "format", which are invisible and
// reorder, join or hide their neighbours.
constexpr Range kHidden[] = {{0x0000, 0x001F}, {0x007F, 0x009F},   {0x00AD, 0x00AD},
                             {0x061C, 0x061C}, {0x180E, 0x180E},   {0x200B, 0x200F},
                             {0x2028, 0x202E}, {0x2060, 0x206F},   {0xFEFF, 0xFEFF},
                             {0xFFF9, 0xFFFB}, {0x1D173, 0x1D17A}, {0xE0000, 0xE0FFF}};

bool IsHidden(char32_t code) {
  return std::any_of(std::begin(kHidden), std::end(kHidden), [code](const Range& range) {
    return code >= range.first && code <= range.last;
  });
}

void AppendUnicode(char32_t code, std::string* out) {
  if (code < 0x10000) {
    absl::StrAppendFormat(out, "\\u%04x", static_cast<unsigned>(code));
    return;
  }
  // JSON writes a code above U+FFFF as a surrogate pair.
  const unsigned above = static_cast<unsigned>(code) - 0x10000;
  absl::StrAppendFormat(out, "\\u%04x\\u%04x", 0xD800 + (above >> 10), 0xDC00 + (above & 0x3FF));
}

void AppendEscaped(char32_t code, absl::string_view as_is, std::string* out) {
  if (!IsHidden(code)) {
    out->append(as_is.data(), as_is.size());
  } else if (code == '\n') {
    *out += "\\n";
  } else if (code == '\t') {
    *out += "\\t";
  } else if (code < 0x80) {
    absl::StrAppendFormat(out, "\\x%02x", static_cast<unsigned>(code));
  } else {
    AppendUnicode(code, out);
  }
}

// Removes the first character of `text`, or its first byte if no character begins there, and
// appends it escaped. Returns false if `text` is empty.
bool EscapeOne(absl::string_view* text, std::string* out) {
  if (text->empty()) return false;
  const Utf8Character one = FirstCharacter(*text);
  if (one.bytes == 0)
    absl::StrAppendFormat(out, "\\x%02x", static_cast<unsigned char>((*text)[0]));
  else
    AppendEscaped(one.code, text->substr(0, one.bytes), out);
  text->remove_prefix(std::max<std::size_t>(one.bytes, 1));
  return true;
}

}  // namespace

std::string Escaped(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (EscapeOne(&text, &out)) {
  }
  return out;
}

std::string Quoted(absl::string_view text, std::size_t characters_max) {
  std::string out;
  for (std::size_t i = 0; i < characters_max && EscapeOne(&text, &out); ++i) {
  }
  return text.empty() ? out : out + "…";
}

std::string JsonWithoutHidden(absl::string_view json) {
  std::string out;
  out.reserve(json.size());
  while (!json.empty()) {
    const Utf8Character one = FirstCharacter(json);
    // JSON has no raw control characters inside strings. White space between strings is kept.
    if (one.bytes != 0 && one.code >= 0x7F && IsHidden(one.code))
      AppendUnicode(one.code, &out);
    else
      out.append(json.data(), std::max<std::size_t>(one.bytes, 1));
    json.remove_prefix(std::max<std::size_t>(one.bytes, 1));
  }
  return out;
}

}  // namespace evergrad

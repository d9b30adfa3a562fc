// Tests Escaped(), which replaces characters by their codes: those on which a terminal would act,
// and those that would reorder or hide the text beside them.
#include "common/base/escape.h"

#include <catch2/catch.hpp>

namespace evergrad {
namespace {

TEST_CASE(
    "control characters, U+202E and invalid UTF-8 are escaped, and all other text is unchanged") {
  const std::pair<std::string, std::string> cases[] = {
      {"plain, with \\ and \"quotes\"", "plain, with \\ and \"quotes\""},
      {"größe → 温度 🚀", "größe → 温度 🚀"},
      {"\x1b[2J\x1b]0;owned\x07", "\\x1b[2J\\x1b]0;owned\\x07"},
      {"a\nb\tc\rd\x7f", "a\\nb\\tc\\x0dd\\x7f"},
      {std::string("a\0b", 3), "a\\x00b"},
      {"\xc2\x9b[31m", "\\u009b[31m"},                   // CSI in one character
      {"gpj.\xe2\x80\xae.exe", "gpj.\\u202e.exe"},       // right-to-left override
      {"\xe2\x81\xa6x\xe2\x81\xa9", "\\u2066x\\u2069"},  // isolates of the text direction
      {"ze\xe2\x80\x8bro\xef\xbb\xbf", "ze\\u200bro\\ufeff"},
      {"line\xe2\x80\xa8separator", "line\\u2028separator"},
      {"\xf3\xa0\x81\x81tag", "\\udb40\\udc41tag"},
      // overlong bytes, and a surrogate
      {"\xff\xc0\xaf\xed\xa0\x80", "\\xff\\xc0\\xaf\\xed\\xa0\\x80"},
      {"cut \xe6\xb8", "cut \\xe6\\xb8"},
  };
  for (const auto& [text, want] : cases) {
    CHECK(Escaped(text) == want);
    CHECK(Escaped(want) == want);  // escaping twice changes nothing more
  }
  // No byte in the result may move a cursor. Every byte is tried, alone and in pairs.
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      for (const char c : Escaped(std::string{static_cast<char>(a), static_cast<char>(b)})) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) FAIL(a << " " << b);
      }
    }
  }
}

TEST_CASE("a quotation shows a limited number of characters and marks omitted ones") {
  CHECK(Quoted("short", 16) == "short");
  CHECK(Quoted("0123456789abcdef", 16) == "0123456789abcdef");
  CHECK(Quoted("0123456789abcdefg", 16) == "0123456789abcdef…");
  CHECK(Quoted("ääääx", 4) == "ääää…");  // the limit counts whole characters
  CHECK(Quoted("\x1b\x1b\x1b", 2) == "\\x1b\\x1b…");
  CHECK(Quoted("x", 0) == "…");
  CHECK(Quoted("", 0).empty());
}

TEST_CASE("JSON strings contain no hidden characters and decode to the original text") {
  CHECK(JsonWithoutHidden("{\n  \"name\": \"a\\n\xe2\x80\xae\x7f\"\n}") ==
        "{\n  \"name\": \"a\\n\\u202e\\u007f\"\n}");
}

}  // namespace
}  // namespace evergrad

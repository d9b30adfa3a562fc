// Tests the reading of JSON that a peer has sent.
#include "kubernetes/api/json_text.h"

#include <catch2/catch.hpp>
#include <limits>
#include <string>

namespace evergrad::kubernetes {
namespace {

std::string Nested(int arrays) {
  return std::string(static_cast<std::size_t>(arrays), '[') +
         std::string(static_cast<std::size_t>(arrays), ']');
}

TEST_CASE("text that is JSON is parsed, and other text is refused") {
  for (const char* text :
       {"{}", "[]", "null", " 1 ", "\"\xc3\xa4\"", "{\"a\":[1,2.5,true,null]}"}) {
    CAPTURE(text);
    CHECK(ParseJson(text).ok());
  }
  for (const char* text :
       {"", " ", "{", "}", "{}{}", "[1,]", "{\"a\":}", "{a:1}", "nul", "NaN", "1e999", "'a'",
        "\"\x01\"", "\"\xff\"", "\"\xc3\"", "\"\xed\xa0\x80\"", "\xef\xbb\xbf{", "// c\n{}"}) {
    CAPTURE(text);
    CHECK(ParseJson(text).status() == absl::InvalidArgumentError("the text is not JSON"));
  }
}

TEST_CASE("JSON may be nested up to the limit, and not deeper") {
  CHECK(ParseJson(Nested(kJsonDepthMax)).ok());
  for (const int depth : {kJsonDepthMax + 2, 1000, 200'000}) {
    CAPTURE(depth);
    CHECK(ParseJson(Nested(depth)).status() ==
          absl::InvalidArgumentError("the JSON is nested too deeply"));
  }
  // The limit also holds for objects, and for a value that is deep in one place only.
  std::string objects;
  for (int i = 0; i < 200; ++i) objects += "{\"a\":";
  CHECK(ParseJson(objects + "1" + std::string(200, '}')).status() ==
        absl::InvalidArgumentError("the JSON is nested too deeply"));
  CHECK_FALSE(ParseJson("{\"a\":1,\"b\":" + Nested(200) + ",\"c\":2}").ok());
}

TEST_CASE("members of a wrong type count as absent") {
  const Json value = *ParseJson(
      R"({"text":"t","empty":"","number":7,"big":18446744073709551615,"most":9223372036854775807,
          "negative":-1,"real":7.0,"null":null,"list":["t"],"object":{"text":"inner"}})");
  CHECK(TextOf(value, "text") == "t");
  for (const char* key : {"empty", "number", "null", "list", "object", "absent"})
    CHECK(TextOf(value, key) == "");
  CHECK(IntegerOf(value, "number") == 7);
  CHECK(IntegerOf(value, "most") == std::numeric_limits<std::int64_t>::max());
  for (const char* key : {"big", "negative", "real", "text", "null", "list", "absent"})
    CHECK(IntegerOf(value, key) == 0);
  CHECK(TextOf(Member(value, "object"), "text") == "inner");
  CHECK(Member(value, "absent").is_null());
  for (const char* other : {"null", "[]", "\"text\"", "1"}) {
    const Json no_object = *ParseJson(other);
    CHECK(Member(no_object, "text").is_null());
    CHECK(TextOf(no_object, "text") == "");
    CHECK(IntegerOf(no_object, "number") == 0);
  }
}

}  // namespace
}  // namespace evergrad::kubernetes

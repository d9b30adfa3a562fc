// Tests the lines and comments of a reference text, which lists every key of a schema.
#include "common/schema/reference_text.h"

#include <catch2/catch.hpp>

namespace evergrad::config {
namespace {

TEST_CASE("lines are appended with a prefix, without the empty ones") {
  std::string out = "type: a\n";
  AppendLines("x: 1\n\n  y: 2\n", "#   ", &out);
  CHECK(out == "type: a\n#   x: 1\n#     y: 2\n");
}

TEST_CASE("a comment above the limit is broken at spaces, and repeats the start of its line") {
  CHECK(WrapComments("# one two\n  # three four\nkey: 1\n", 9) ==
        "# one two\n  # three\n  # four\nkey: 1\n");
  CHECK(WrapComments("  #   # one two three", 16) == "  #   # one two\n  #   # three");
  CHECK(WrapComments("# a  b c", 6) == "# a  b\n# c");
}

TEST_CASE("a comment behind a value continues below its start") {
  CHECK(WrapComments("  #   - log  # one two", 20) == "  #   - log  # one\n  #          # two");
  CHECK(WrapComments("  key: 7  # one two", 16) == "  key: 7  # one\n          # two");
}

TEST_CASE("values, commented keys of an inner level and long words are not broken") {
  for (const char* line : {"key: a b c d e f", "#   key: a b c d e", "# abcdefghijklmnop"})
    CHECK(WrapComments(line, 10) == line);
  CHECK(WrapComments("# abcdefghijklmnop qr", 10) == "# abcdefghijklmnop\n# qr");
}

TEST_CASE("the width of a comment is counted in characters, not in bytes") {
  CHECK(WrapComments("# … … …", 7) == "# … … …");
  CHECK(WrapComments("# … … …", 6) == "# … …\n# …");
}

}  // namespace
}  // namespace evergrad::config

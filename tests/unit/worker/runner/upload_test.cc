// Tests uploads of an export: the order in which its parts are sent, the window of unconfirmed
// parts, and the effects of a lost session.
#include "worker/runner/upload.h"

#include <catch2/catch.hpp>

namespace evergrad::worker {
namespace {

std::string Text(const std::optional<Upload::Chunk>& chunk) {
  if (!chunk) return "-";
  return std::to_string(chunk->file) + ":" + std::to_string(chunk->offset) + "+" +
         std::to_string(chunk->bytes) + (chunk->last ? "!" : "");
}

TEST_CASE(
    "files are sent one after another, each in order, and no more than a window beyond what is "
    "confirmed") {
  Upload upload({{"a", 25}, {"b", 10}}, 10, 20);
  CHECK(Text(upload.Next()) == "0:0+10");
  CHECK(Text(upload.Next()) == "0:10+10");
  CHECK(Text(upload.Next()) == "-");  // the window is full
  REQUIRE(upload.Confirm("a", 10).ok());
  CHECK(Text(upload.Next()) == "0:20+5!");
  CHECK(Text(upload.Next()) == "-");  // the next file begins when this file is confirmed
  REQUIRE(upload.Confirm("a", 20).ok());
  CHECK(Text(upload.Next()) == "-");
  REQUIRE(upload.Confirm("a", 25).ok());
  CHECK(upload.confirmed_bytes() == 25);
  CHECK(Text(upload.Next()) == "1:0+10!");
  CHECK_FALSE(upload.done());
  REQUIRE(upload.Confirm("b", 10).ok());
  CHECK(upload.done());
  CHECK(Text(upload.Next()) == "-");
}

TEST_CASE("after a lost session only the present file is sent again") {
  Upload upload({{"a", 10}, {"b", 30}}, 10, 20);
  REQUIRE(Text(upload.Next()) == "0:0+10!");
  REQUIRE(upload.Confirm("a", 10).ok());
  REQUIRE(Text(upload.Next()) == "1:0+10");
  REQUIRE(Text(upload.Next()) == "1:10+10");
  REQUIRE(upload.Confirm("b", 10).ok());
  const std::uint64_t generation = upload.generation();
  upload.Restart();
  CHECK(upload.generation() != generation);
  CHECK(Text(upload.Next()) == "1:0+10");
  CHECK(upload.confirmed_bytes() == 10);
}

TEST_CASE("an answer about a part that was not sent is refused, and an empty file is one part") {
  Upload upload({{"a", 10}, {"none", 0}}, 10, 20);
  CHECK_FALSE(upload.Confirm("a", 1).ok());
  REQUIRE(upload.Next());
  CHECK_FALSE(upload.Confirm("b", 1).ok());
  CHECK_FALSE(upload.Confirm("a", 11).ok());
  REQUIRE(upload.Confirm("a", 10).ok());
  CHECK(Text(upload.Next()) == "1:0+0!");
  CHECK_FALSE(upload.done());
  REQUIRE(upload.Confirm("none", 0).ok());
  CHECK(upload.done());
  CHECK_FALSE(upload.Confirm("none", 0).ok());
}

}  // namespace
}  // namespace evergrad::worker

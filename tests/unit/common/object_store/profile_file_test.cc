#include "common/object_store/profile_file.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"

namespace evergrad::object_store {
namespace {

constexpr char kFile[] =
    "\xEF\xBB\xBF# A comment.\n"
    "\r\n"
    "[default]\r\n"
    "aws_access_key_id = AKIADEFAULT\r\n"
    "aws_secret_access_key=a/b+c=\r\n"
    "; another comment\n"
    "[ prod ] # a comment\n"
    "  AWS_ACCESS_KEY_ID\t=\tAKIAPROD  # a comment\n"
    "aws_secret_access_key = x#y;z ;a comment\n"
    "s3 =\n"
    "  aws_access_key_id = nested\n"
    "\taddressing_style = path\n"
    "region = eu-west-1\n"
    "[empty]\n"
    "[default]\n"
    "aws_session_token = token\n"
    "aws_access_key_id = AKIALAST";

TEST_CASE("the section of a profile is read with its comments, spaces and nested settings") {
  const auto prod = FindProfile(kFile, "prod");
  REQUIRE(prod.ok());
  REQUIRE(prod->has_value());
  CHECK(**prod == Profile{{"aws_access_key_id", "AKIAPROD"},
                          {"aws_secret_access_key", "x#y;z"},
                          {"region", "eu-west-1"},
                          {"s3", ""}});
}

TEST_CASE("sections of one profile are joined, and the last value of a key counts") {
  const auto found = FindProfile(kFile, "default");
  REQUIRE(found.ok());
  REQUIRE(found->has_value());
  CHECK(**found == Profile{{"aws_access_key_id", "AKIALAST"},
                           {"aws_secret_access_key", "a/b+c="},
                           {"aws_session_token", "token"}});
}

TEST_CASE("a missing profile is nullopt, and an empty one has no keys") {
  for (const char* name : {"pro", "prod ", "PROD", "profile prod", ""}) {
    const auto found = FindProfile(kFile, name);
    REQUIRE(found.ok());
    CHECK_FALSE(found->has_value());
  }
  const auto empty = FindProfile(kFile, "empty");
  REQUIRE(empty.ok());
  REQUIRE(empty->has_value());
  CHECK((*empty)->empty());
  CHECK_FALSE(FindProfile("", "default")->has_value());
}

TEST_CASE("a malformed line is named by its number and not shown") {
  const struct {
    const char* text;
    int line;
  } kCases[] = {
      {"[default]\n\naws_secret_access_key secret\n", 3},
      {"[default]\n= secret\n", 2},
      {"secret = 1\n[default]\n", 1},
      {"[secret\n", 1},
      {"[]\n", 1},
      {"[default] secret\n", 1},
  };
  for (const auto& one : kCases) {
    INFO(one.text);
    const auto found = FindProfile(one.text, "default");
    REQUIRE_FALSE(found.ok());
    CHECK(found.status() == absl::InvalidArgumentError(absl::StrCat(
                                "a line is neither [PROFILE] nor KEY = VALUE: line=", one.line)));
  }
}

}  // namespace
}  // namespace evergrad::object_store

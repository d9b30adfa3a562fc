#include "common/object_store/time_text.h"

#include <catch2/catch.hpp>

namespace evergrad::object_store {
namespace {

TEST_CASE("the time of a signature is in UTC, without milliseconds") {
  CHECK(BasicTime(0) == "19700101T000000Z");
  CHECK(BasicTime(1'369'353'600'000) == "20130524T000000Z");
  CHECK(BasicTime(1'735'689'599'999) == "20241231T235959Z");
  CHECK(BasicTime(1'835'440'496'000) == "20280229T123456Z");
}

TEST_CASE("a time of ISO 8601 is read with its fraction and its offset") {
  const struct {
    const char* text;
    std::int64_t want;
  } kCases[] = {
      {"2013-05-24T00:00:00Z", 1'369'353'600'000},
      {"2013-05-24T00:00:00.5Z", 1'369'353'600'500},
      {"2013-05-24T00:00:00.123456789Z", 1'369'353'600'123},
      {"2013-05-24T02:00:00+02:00", 1'369'353'600'000},
      {"2013-05-23T18:30:00-05:30", 1'369'353'600'000},
      {"2028-02-29T12:34:56Z", 1'835'440'496'000},
      {"1970-01-01T00:00:00Z", 0},
      {"9999-12-31T23:59:59Z", 253'402'300'799'000},
  };
  for (const auto& one : kCases) {
    INFO(one.text);
    const auto time = ParseTime(one.text);
    REQUIRE(time);
    CHECK(*time == one.want);
  }
}

TEST_CASE("a text that is not exactly a time of ISO 8601 is refused") {
  for (const char* text : {"",
                           "2013",
                           "2013-05-24",
                           "2013-05-24T00:00:00",
                           "2013-05-24 00:00:00Z",
                           "2013-05-24T00:00:00z",
                           "2013-05-24T00:00:00ZZ",
                           " 2013-05-24T00:00:00Z",
                           "2013-05-24T00:00:00.Z",
                           "2013-05-24T00:00:00.1234567890Z",
                           "2013-05-24T00:00:00+0200",
                           "2013-05-24T00:00:00+24:00",
                           "2013-13-24T00:00:00Z",
                           "2013-00-24T00:00:00Z",
                           "2013-02-30T00:00:00Z",
                           "2027-02-29T00:00:00Z",
                           "2013-05-32T00:00:00Z",
                           "2013-05-24T24:00:00Z",
                           "2013-05-24T00:60:00Z",
                           "2013-05-24T00:00:61Z",
                           "1969-12-31T23:59:59Z",
                           "+013-05-24T00:00:00Z",
                           "2013-5-24T00:00:00Z",
                           "1369353600"}) {
    INFO(text);
    CHECK_FALSE(ParseTime(text));
  }
}

}  // namespace
}  // namespace evergrad::object_store

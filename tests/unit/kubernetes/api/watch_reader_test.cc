// Tests the events of a watch, and the errors of the API server.
#include "kubernetes/api/watch_reader.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace evergrad::kubernetes {
namespace {

using absl::StatusCode;
using Kind = WatchEvent::Kind;

std::string Event(const std::string& type, const std::string& name, const std::string& version) {
  return absl::StrCat(R"({"type":")", type, R"(","object":{"metadata":{"name":")", name,
                      R"(","uid":"u","resourceVersion":")", version, R"("},"spec":{"a":"ä"}}})");
}

// Describes an event in one line.
std::string Shown(const WatchEvent& event) {
  static const char* const kNames[] = {"changed", "removed", "bookmark", "error", "unreadable"};
  return absl::StrCat(kNames[static_cast<int>(event.kind)], " ",
                      event.object ? event.object->name : "-", " ", event.resource_version, " ",
                      event.error.ok() ? "" : absl::StatusCodeToString(event.error.code()));
}

struct Reading {
  std::vector<std::string> events;
  WatchReader reader{[this](WatchEvent event) { events.push_back(Shown(event)); }};
};

TEST_CASE("each type of event is read") {
  const struct {
    std::string line, shown;
  } cases[] = {
      {Event("ADDED", "a", "1"), "changed a 1 "},
      {Event("MODIFIED", "a", "2"), "changed a 2 "},
      {Event("DELETED", "a", "3"), "removed a 3 "},
      {R"({"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}})", "bookmark - 9 "},
      {R"({"type":"BOOKMARK"})", "bookmark -  "},
      {R"({"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}})",
       "error -  OUT_OF_RANGE"},
      {R"({"type":"ERROR","object":{"code":500}})", "error -  UNAVAILABLE"},
      {R"({"type":"ERROR"})", "error -  UNAVAILABLE"},
      // A later version of the API server may have further types.
      {Event("SYNCED", "a", "4"), "unreadable -  INVALID_ARGUMENT"},
      {R"({"type":7,"object":{}})", "unreadable -  INVALID_ARGUMENT"},
      {R"({"type":"ADDED"})", "unreadable -  INVALID_ARGUMENT"},
      {R"({"type":"ADDED","object":{"metadata":{"name":"a"}}})", "unreadable -  INVALID_ARGUMENT"},
      {"[]", "unreadable -  INVALID_ARGUMENT"},
      {"hello", "unreadable -  INVALID_ARGUMENT"},
      {"\xff", "unreadable -  INVALID_ARGUMENT"},
      {std::string(200, '['), "unreadable -  INVALID_ARGUMENT"},
  };
  for (const auto& one : cases) {
    CAPTURE(one.line);
    CHECK(Shown(ReadWatchEvent(one.line)) == one.shown);
  }
}

TEST_CASE("an event whose object cannot be read has no version, and says what is missing") {
  const WatchEvent event = ReadWatchEvent(
      R"({"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7"}}})");
  CHECK(event.kind == Kind::kUnreadable);
  CHECK(event.error.message() == "the object has no text metadata.uid");
  CHECK_FALSE(event.object.has_value());
}

TEST_CASE("a hostile type is escaped and shortened in the message") {
  const WatchEvent event =
      ReadWatchEvent(R"({"type":"a\nb)" + std::string(1000, 'x') + R"(","object":{}})");
  const std::string message(event.error.message());
  CHECK_THAT(message, Catch::StartsWith("unknown type of event: a\\nbxxx"));
  CHECK(message.size() < 100);
}

TEST_CASE("all divisions of a stream into pieces give the same events") {
  const std::string stream =
      Event("ADDED", "a", "1") + "\n\n" +
      R"({"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"2"}}})" + "\nnonsense\n" +
      Event("DELETED", "a", "3") + "\n" + Event("ADDED", "b", "4");  // without a line end
  const std::vector<std::string> expected = {"changed a 1 ", "bookmark - 2 ",
                                             "unreadable -  INVALID_ARGUMENT", "removed a 3 "};
  for (std::size_t first = 0; first <= stream.size(); ++first) {
    Reading two;
    CHECK(two.reader.Add(absl::string_view(stream).substr(0, first)));
    CHECK(two.reader.Add(absl::string_view(stream).substr(first)));
    REQUIRE(two.events == expected);
  }
  for (std::size_t bytes = 1; bytes <= stream.size(); ++bytes) {
    Reading many;
    for (std::size_t at = 0; at < stream.size(); at += bytes)
      CHECK(many.reader.Add(absl::string_view(stream).substr(at, bytes)));
    REQUIRE(many.events == expected);
  }
}

TEST_CASE("each event is reported with the piece that completes its line") {
  Reading reading;
  const std::string line = Event("ADDED", "a", "1");
  CHECK(reading.reader.Add(line));
  CHECK(reading.events.empty());
  CHECK(reading.reader.Add("\n"));
  CHECK(reading.events == std::vector<std::string>{"changed a 1 "});
  CHECK(reading.reader.Add(""));
  CHECK(reading.reader.Add("\n\n\n"));
  CHECK(reading.events.size() == 1);
}

TEST_CASE("a line above the limit ends the reader for ever, whatever its pieces are") {
  const std::string whole = Event("ADDED", "a", "1") + "\n";
  const std::string most(WatchReader::kLineBytesMax, 'x');
  SECTION("a line as long as the limit is read") {
    Reading reading;
    CHECK(reading.reader.Add(most));
    CHECK(reading.reader.Add("\n" + whole));
    CHECK(reading.events ==
          std::vector<std::string>{"unreadable -  INVALID_ARGUMENT", "changed a 1 "});
  }
  SECTION("one piece") {
    Reading reading;
    CHECK_FALSE(reading.reader.Add(whole + most + "x\n" + whole));
    CHECK(reading.events == std::vector<std::string>{"changed a 1 "});
    CHECK_FALSE(reading.reader.Add("\n" + whole));
    CHECK(reading.events.size() == 1);
  }
  SECTION("several pieces") {
    Reading reading;
    CHECK(reading.reader.Add(most));
    CHECK_FALSE(reading.reader.Add("x"));
    CHECK_FALSE(reading.reader.Add("\n" + whole));
    CHECK_FALSE(reading.reader.Add(""));
    CHECK(reading.events.empty());
  }
}

TEST_CASE("each status of the API server has its code") {
  const struct {
    std::int64_t status;
    const char* reason;
    StatusCode code;
  } cases[] = {{400, "BadRequest", StatusCode::kInvalidArgument},
               {401, "Unauthorized", StatusCode::kUnauthenticated},
               {403, "Forbidden", StatusCode::kPermissionDenied},
               {404, "NotFound", StatusCode::kNotFound},
               {405, "", StatusCode::kInvalidArgument},
               {409, "Conflict", StatusCode::kAborted},
               {409, "AlreadyExists", StatusCode::kAlreadyExists},
               {409, "", StatusCode::kAborted},
               {410, "Expired", StatusCode::kOutOfRange},
               {413, "", StatusCode::kInvalidArgument},
               {422, "Invalid", StatusCode::kInvalidArgument},
               {429, "TooManyRequests", StatusCode::kResourceExhausted},
               {500, "InternalError", StatusCode::kUnavailable},
               {503, "", StatusCode::kUnavailable},
               {504, "Timeout", StatusCode::kUnavailable},
               {302, "", StatusCode::kUnavailable},
               {0, "", StatusCode::kUnavailable}};
  for (const auto& one : cases) {
    CAPTURE(one.status, one.reason);
    const absl::Status error = ErrorOf(one.status, {{"reason", one.reason}, {"message", "m"}});
    CHECK(error.code() == one.code);
    CHECK(error.message() ==
          absl::StrCat("the API server answered status=", one.status,
                       *one.reason == '\0' ? "" : absl::StrCat(" reason=", one.reason), ": m"));
  }
}

TEST_CASE("the message of an error is limited and escaped, and may be absent") {
  CHECK(ErrorOf(500, Json()).message() == "the API server answered status=500");
  CHECK(ErrorOf(500, {{"message", 5}, {"reason", nullptr}}).message() ==
        "the API server answered status=500");
  const std::string message(ErrorOf(403, {{"reason", std::string(1000, 'r')},
                                          {"message", "a\n" + std::string(5000, 'm')}})
                                .message());
  CHECK(message.size() < 700);
  CHECK_THAT(message, Catch::Contains(": a\\nmmm"));
}

}  // namespace
}  // namespace evergrad::kubernetes

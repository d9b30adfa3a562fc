// Tests the reader of responses without sockets: lines and bytes as libcurl delivers them.
#include "common/http/response_reader.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "common/http/header_rules.h"

namespace evergrad::http {
namespace {

// Adds lines until one is refused. Returns the reason, or "".
std::string AddLines(ResponseReader* reader, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    if (!reader->AddHeaderLine(line)) return std::string(reader->refusal().message());
  }
  CHECK(reader->refusal().ok());
  return "";
}

TEST_CASE("header names become lower case, values lose outer spaces, and the order is kept") {
  ResponseReader reader(false, 10);
  CHECK(AddLines(&reader, {"HTTP/1.1 206 Partial Content\r\n", "ETag: \"a:b\"\r\n",
                           "X-AMZ-Meta:\t x y \t\r\n", "empty:\r\n", "etag:2\n"}) == "");
  CHECK_FALSE(reader.has_headers());
  CHECK(AddLines(&reader, {"\r\n"}) == "");
  CHECK(reader.has_headers());
  CHECK(reader.AddBody("01234"));
  CHECK(reader.AddBody(absl::string_view("\0\n789", 5)));
  const Response response = reader.Take();
  CHECK(response.status == 206);
  CHECK(response.headers ==
        std::vector<Header>{
            {"etag", "\"a:b\""}, {"x-amz-meta", "x y"}, {"empty", ""}, {"etag", "2"}});
  CHECK(response.body == std::string("01234\0\n789", 10));
  CHECK(response.Find("etag") == "2");
  CHECK(response.Find("x-amz-meta") == "x y");
  CHECK(response.Find("empty") == "");
  CHECK(response.Find("absent") == "");
}

TEST_CASE("headers of an interim response and headers after the body are forgotten") {
  ResponseReader reader(false, 10);
  CHECK(AddLines(&reader, {"HTTP/1.1 100 Continue\r\n", "ETag: interim\r\n",
                           "Content-Length: 99\r\n", "\r\n"}) == "");
  CHECK_FALSE(reader.has_headers());
  CHECK(AddLines(&reader, {"HTTP/1.1 200\r\n", "ETag: final\r\n", "\r\n"}) == "");
  CHECK(reader.AddBody("x"));
  CHECK(AddLines(&reader, {"ETag: trailer\r\n", "\r\n"}) == "");
  const Response response = reader.Take();
  CHECK(response.status == 200);
  CHECK(response.headers == std::vector<Header>{{"etag", "final"}});
}

TEST_CASE("malformed status lines and headers are refused") {
  for (const char* status :
       {"HTTP/1.1", "HTTP/1.1 ", "HTTP/1.1 20", "HTTP/1.1 2x0", "HTTP/1.1 -20", "HTTP/1.1 099 x"}) {
    CAPTURE(status);
    ResponseReader reader(false, 10);
    CHECK(AddLines(&reader, {status}) == "the response has a malformed status line");
    CHECK(reader.refusal().code() == absl::StatusCode::kUnavailable);
  }
  for (const std::string& line :
       {std::string("no colon"), std::string(": no name"), std::string("a b: c"),
        std::string(" folded: c"), std::string("a: b\rc: d"), std::string("a: b\0", 5)}) {
    CAPTURE(line);
    ResponseReader reader(false, 10);
    CHECK(AddLines(&reader, {"HTTP/1.1 200 OK", line + "\r\n"}) ==
          "the response has a malformed header");
    CHECK(reader.refusal().code() == absl::StatusCode::kUnavailable);
    CHECK_FALSE(reader.AddHeaderLine("a: b\r\n"));
    CHECK_FALSE(reader.AddBody("x"));
  }
}

TEST_CASE("a body above the limit is refused before its first byte if its length is announced") {
  const std::vector<std::string> headers = {"HTTP/1.1 200 OK\r\n", "Content-Length: 11\r\n",
                                            "\r\n"};
  {
    ResponseReader reader(false, 10);
    CHECK(AddLines(&reader, headers) == "the response has 11 bytes, and the limit is 10 bytes");
    CHECK(reader.refusal().code() == absl::StatusCode::kResourceExhausted);
  }
  {
    ResponseReader reader(false, 11);
    CHECK(AddLines(&reader, headers) == "");
    CHECK(reader.AddBody("0123456789a"));
    CHECK_FALSE(reader.AddBody("b"));
    CHECK(reader.refusal().message() == "the response exceeds its limit of 11 bytes");
    CHECK(reader.refusal().code() == absl::StatusCode::kResourceExhausted);
  }
  ResponseReader to_head(true, 10);
  CHECK(AddLines(&to_head, headers) == "");
  for (const char* status : {"204", "304"}) {
    ResponseReader reader(false, 10);
    CHECK(AddLines(&reader, {std::string("HTTP/1.1 ") + status, headers[1], headers[2]}) == "");
  }
}

TEST_CASE("headers are limited in number and bytes, over all interim responses") {
  ResponseReader many(false, 10);
  CHECK(many.AddHeaderLine("HTTP/1.1 103 Early Hints\r\n"));
  for (int i = 0; i < 100; ++i) CHECK(many.AddHeaderLine("a: b\r\n"));
  CHECK(AddLines(&many, {"\r\n", "HTTP/1.1 200 OK\r\n"}) == "");
  for (int i = 0; i < 100; ++i) CHECK(many.AddHeaderLine("a: b\r\n"));
  CHECK_FALSE(many.AddHeaderLine("a: b\r\n"));
  CHECK(many.refusal() == absl::ResourceExhaustedError("the response has more than 200 headers"));

  ResponseReader large(false, 10);
  const std::string status = "HTTP/1.1 200 OK\r\n";
  CHECK(large.AddHeaderLine(status));
  CHECK(large.AddHeaderLine("a: " + std::string(65'536 - status.size() - 5, 'x') + "\r\n"));
  CHECK(large.header_bytes() == 65'536);
  CHECK_FALSE(large.AddHeaderLine("\n"));
  CHECK(large.refusal() ==
        absl::ResourceExhaustedError("the headers of the response exceed 65536 bytes"));
}

TEST_CASE("names of headers are tokens, and values have no line ends") {
  for (const char* name : {"a", "X-Amz-Date", "x_1.~!#$%&'*+^`|"}) CHECK(IsHeaderName(name));
  for (const char* name : {"", " a", "a ", "a:", "a\n", "\xc3\xa4", "a\"", "(a)"}) {
    CAPTURE(name);
    CHECK_FALSE(IsHeaderName(name));
  }
  for (const char* value : {"", " ", "a\tb", "\xc3\xa4", ": \"x\""}) CHECK(IsHeaderValue(value));
  for (const char* value : {"a\r\nb: c", "\n", "\x1b", "\x7f"}) CHECK_FALSE(IsHeaderValue(value));
  CHECK_FALSE(IsHeaderValue(absl::string_view("\0", 1)));
}

}  // namespace
}  // namespace evergrad::http

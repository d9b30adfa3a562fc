#include "common/object_store/object_answers.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace evergrad::object_store {
namespace {

constexpr char kMark[] = "0123456789abcdef0123456789abcdef";

http::Response ResponseWith(int status, std::string body, std::vector<http::Header> headers) {
  http::Response response;
  response.status = status;
  response.body = std::move(body);
  response.headers = std::move(headers);
  return response;
}

TEST_CASE("the headers of an object give its size, its tag and its writer") {
  const http::Response s3 = ResponseWith(
      200, "",
      {{"content-length", "1234"}, {"etag", "\"abc-3\""}, {"x-amz-meta-evergrad-writer", kMark}});
  const absl::StatusOr<ObjectInfo> info = ReadObjectInfo(s3, fs::StoreKind::kS3);
  REQUIRE(info.ok());
  CHECK(info->bytes == 1234);
  CHECK(info->etag == "\"abc-3\"");
  CHECK(info->writer_mark == kMark);
  // The metadata of another store is not a mark.
  CHECK(ReadObjectInfo(s3, fs::StoreKind::kGcs)->writer_mark.empty());

  const absl::StatusOr<ObjectInfo> gcs =
      ReadObjectInfo(ResponseWith(200, "",
                                  {{"x-goog-stored-content-length", "5"},
                                   {"etag", "\"abc\""},
                                   {"x-goog-meta-evergrad-writer", "not a mark"}}),
                     fs::StoreKind::kGcs);
  REQUIRE(gcs.ok());
  CHECK(gcs->bytes == 5);
  CHECK(gcs->writer_mark.empty());
}

TEST_CASE("an object without a valid size or tag is not valid") {
  const std::vector<std::vector<http::Header>> cases = {
      {},
      {{"content-length", "5"}},
      {{"etag", "\"e\""}},
      {{"content-length", "-5"}, {"etag", "\"e\""}},
      {{"content-length", "5, 5"}, {"etag", "\"e\""}},
      {{"content-length", "5"}, {"etag", ""}},
      {{"content-length", "5"}, {"etag", "\"e\r\nx: y\""}},
      {{"content-length", "5"}, {"etag", std::string(kEtagBytesMax + 1, 'e')}},
  };
  for (const std::vector<http::Header>& headers : cases) {
    CAPTURE(headers.size());
    CHECK(ReadObjectInfo(ResponseWith(200, "", headers), fs::StoreKind::kS3).status().code() ==
          absl::StatusCode::kDataLoss);
  }
}

TEST_CASE("the range of a response is compared with the range that was asked for") {
  struct Case {
    std::string content_range, body;
    bool is_valid;
  };
  // The request asks for the bytes 10 to 14.
  const std::vector<Case> cases = {
      {"bytes 10-14/100", "01234", true},
      {"bytes 10-14/15", "01234", true},
      {"bytes 10-14/*", "01234", true},
      {"bytes 10-12/13", "012", true},  // the end of the object
      {"bytes 10-10/11", "0", true},
      {"bytes 10-12/100", "012", false},  // shorter within the object
      {"bytes 10-12/*", "012", false},
      {"bytes 10-14/100", "0123", false},
      {"bytes 10-14/100", "012345", false},
      {"bytes 10-15/100", "012345", false},
      {"bytes 11-14/100", "1234", false},
      {"bytes 9-13/100", "01234", false},
      {"bytes 0-4/100", "01234", false},
      {"bytes 10-14/14", "01234", false},  // the last byte is beyond the end
      {"bytes 14-10/100", "01234", false},
      {"bytes 10-14", "01234", false},
      {"bytes 10-14/", "01234", false},
      {"bytes 10/100", "01234", false},
      {"bytes */100", "01234", false},
      {"10-14/100", "01234", false},
      {"bytes=10-14/100", "01234", false},
      {"bytes 10-14/100 ", "01234", false},
      {"bytes 10--14/100", "01234", false},
      {"bytes 10-14/99999999999999999999", "01234", false},
      {"", "01234", false},
  };
  for (const Case& one : cases) {
    CAPTURE(one.content_range, one.body);
    http::Response response = ResponseWith(206, one.body, {{"content-range", one.content_range}});
    const absl::StatusOr<std::string> bytes = TakeRange(&response, {10, 5, ""});
    CHECK(bytes.ok() == one.is_valid);
    if (bytes.ok()) CHECK(*bytes == one.body);
    if (!bytes.ok()) CHECK(bytes.status().code() == absl::StatusCode::kDataLoss);
  }
}

TEST_CASE("a store that ignores the range sends the whole object, and the range is cut out") {
  struct Case {
    std::uint64_t offset, bytes;
    std::string result;
  };
  const std::vector<Case> cases = {
      {0, 10, "0123456789"}, {0, 3, "012"},
      {3, 4, "3456"},        {7, 100, "789"},
      {9, 1, "9"},           {10, 1, ""},
      {1'000, 5, ""},        {2, std::numeric_limits<std::uint64_t>::max(), "23456789"}};
  for (const Case& one : cases) {
    CAPTURE(one.offset, one.bytes);
    http::Response response = ResponseWith(200, "0123456789", {{"content-length", "10"}});
    CHECK(TakeRange(&response, {one.offset, one.bytes, ""}).value() == one.result);
  }
  http::Response no_content = ResponseWith(204, "", {});
  CHECK_FALSE(TakeRange(&no_content, {0, 1, ""}).ok());
}

TEST_CASE("a body has the length that its headers announce") {
  for (const char* length : {"4", "6", "x", "5,5"}) {
    CAPTURE(length);
    http::Response response = ResponseWith(
        206, "01234", {{"content-range", "bytes 10-14/100"}, {"content-length", length}});
    CHECK(TakeRange(&response, {10, 5, ""}).status().code() == absl::StatusCode::kDataLoss);
  }
}

TEST_CASE("a response of another object is refused even if the store ignored If-Match") {
  const auto take = [](const std::string& asked, const std::string& sent) {
    http::Response response =
        ResponseWith(206, "01234", {{"content-range", "bytes 10-14/100"}, {"etag", sent}});
    return TakeRange(&response, {10, 5, asked}).status().code();
  };
  CHECK(take("\"a\"", "\"a\"") == absl::StatusCode::kOk);
  CHECK(take("", "\"a\"") == absl::StatusCode::kOk);
  CHECK(take("\"a\"", "") == absl::StatusCode::kOk);
  CHECK(take("\"a\"", "\"b\"") == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("a whole object is compared with its checksum") {
  struct Case {
    std::vector<http::Header> headers;
    bool is_valid;
  };
  // Checksums of "123456789". That of CRC-32C is its check value, 0xE3069283.
  const std::string crc = "4waSgw==", sha = "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=";
  const std::string wrong_sha = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
  const std::vector<Case> cases = {
      {{}, true},
      {{{"x-amz-checksum-crc32c", crc}}, true},
      {{{"x-amz-checksum-crc32c", "AAAAAA=="}}, false},
      {{{"x-amz-checksum-crc32c", "AAAAAA==-3"}}, true},  // of the parts
      {{{"x-amz-checksum-crc32c", "AAAAAA=="}, {"x-amz-checksum-type", "COMPOSITE"}}, true},
      {{{"x-amz-checksum-crc32c", "AAAAAA=="}, {"x-amz-checksum-type", "FULL_OBJECT"}}, false},
      {{{"x-amz-checksum-sha256", wrong_sha}}, false},
      {{{"x-amz-checksum-sha256", wrong_sha + "-2"}}, true},
      {{{"x-amz-checksum-crc64nvme", "AAAAAAAAAAA="}}, true},  // another algorithm
      {{{"x-goog-hash", "crc32c=" + crc}}, true},
      {{{"x-goog-hash", "crc32c=AAAAAA=="}}, false},
      {{{"x-goog-hash", "crc32c=" + crc + ",md5=AAAA"}}, true},
      {{{"x-goog-hash", "md5=AAAA, crc32c=AAAAAA=="}}, false},
      {{{"x-goog-hash", "crc32c=AAAAAA=="}, {"x-goog-hash", "md5=AAAA"}}, false},
      {{{"x-goog-hash", "crc32c=AAAAAA=="}, {"x-goog-stored-content-encoding", "gzip"}}, true},
      {{{"x-goog-hash", "crc32c=AAAAAA=="},
        {"x-goog-stored-content-encoding", "gzip"},
        {"content-encoding", "gzip"}},
       false},
      {{{"x-goog-hash", "crc32c=AAAAAA=="}, {"x-goog-stored-content-encoding", "identity"}}, false},
  };
  CHECK(GoogleHash("123456789") == "crc32c=" + crc);
  for (const Case& one : cases) {
    CAPTURE(one.headers.empty() ? "" : one.headers[0].name + ": " + one.headers[0].value);
    http::Response whole = ResponseWith(200, "123456789", one.headers);
    CHECK(TakeRange(&whole, {0, 100, ""}).ok() == one.is_valid);
    http::Response as_range = ResponseWith(206, "123456789", one.headers);
    as_range.headers.push_back({"content-range", "bytes 0-8/9"});
    CHECK(TakeRange(&as_range, {0, 100, ""}).ok() == one.is_valid);
    // The checksum does not describe a part of the object.
    http::Response part = ResponseWith(206, "12345678", one.headers);
    part.headers.push_back({"content-range", "bytes 0-7/9"});
    CHECK(TakeRange(&part, {0, 8, ""}).ok());
  }
  http::Response right = ResponseWith(200, "123456789", {{"x-amz-checksum-sha256", sha}});
  CHECK(TakeRange(&right, {0, 100, ""}).ok());
}

TEST_CASE("a range beyond the end contradicts a larger size") {
  const auto check = [](const std::string& range, std::uint64_t offset) {
    return CheckBeyondEnd(ResponseWith(416, "", {{"content-range", range}}), {offset, 5, ""}).ok();
  };
  CHECK(check("", 10));
  CHECK(check("bytes */10", 10));
  CHECK(check("bytes */0", 0));
  CHECK_FALSE(check("bytes */11", 10));
  CHECK_FALSE(check("bytes 0-1/2", 10));
  CHECK_FALSE(check("bytes */x", 10));
}

TEST_CASE("the last byte of a range does not overflow") {
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  CHECK(LastByte({0, 1, ""}) == 0);
  CHECK(LastByte({10, 5, ""}) == 14);
  CHECK(LastByte({10, std::numeric_limits<std::uint64_t>::max(), ""}) == kMax);
  CHECK(LastByte({kMax, 1, ""}) == kMax);
  CHECK(LastByte({kMax, 2, ""}) == kMax);
}

}  // namespace
}  // namespace evergrad::object_store

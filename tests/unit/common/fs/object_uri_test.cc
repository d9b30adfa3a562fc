#include "common/fs/object_uri.h"

#include <catch2/catch.hpp>

namespace evergrad::fs {
namespace {

TEST_CASE("the URI of an object has a store, a bucket and a key") {
  const struct {
    std::string uri;
    ObjectUri object;
    std::string text;  // the normalized URI
  } cases[] = {
      {"s3://bucket/a/b", {StoreKind::kS3, "bucket", "a/b"}, "s3://bucket/a/b"},
      {"gs://bucket/a", {StoreKind::kGcs, "bucket", "a"}, "gs://bucket/a"},
      {"s3://bucket", {StoreKind::kS3, "bucket", ""}, "s3://bucket"},
      {"s3://bucket/", {StoreKind::kS3, "bucket", ""}, "s3://bucket"},
      {"s3://bucket/a/b///", {StoreKind::kS3, "bucket", "a/b"}, "s3://bucket/a/b"},
      {"s3://my.bucket-1/a b", {StoreKind::kS3, "my.bucket-1", "a b"}, "s3://my.bucket-1/a b"},
      {"gs://my_bucket/x", {StoreKind::kGcs, "my_bucket", "x"}, "gs://my_bucket/x"},
      // A key is plain text.
      {"s3://bucket/a%2Fb?c#d", {StoreKind::kS3, "bucket", "a%2Fb?c#d"}, "s3://bucket/a%2Fb?c#d"},
      {"s3://bucket/s3://x", {}, ""},  // has an empty segment
      {"s3://bucket/...", {StoreKind::kS3, "bucket", "..."}, "s3://bucket/..."},
      {"s3://bucket/.a/b..", {StoreKind::kS3, "bucket", ".a/b.."}, "s3://bucket/.a/b.."},
      {"s3://bucket/größe/\xF0\x9F\x98\x80",
       {StoreKind::kS3, "bucket", "größe/\xF0\x9F\x98\x80"},
       "s3://bucket/größe/\xF0\x9F\x98\x80"},
      {"s3://" + std::string(63, 'b') + "/" + std::string(1024, 'k'),
       {StoreKind::kS3, std::string(63, 'b'), std::string(1024, 'k')},
       "s3://" + std::string(63, 'b') + "/" + std::string(1024, 'k')},
  };
  for (const auto& c : cases) {
    INFO(c.uri);
    CHECK(IsObjectUri(c.uri));
    const auto object = ParseObjectUri(c.uri);
    if (c.text.empty()) {
      CHECK(absl::IsInvalidArgument(object.status()));
      continue;
    }
    REQUIRE(object.ok());
    CHECK(*object == c.object);
    CHECK(ToString(*object) == c.text);
    CHECK(*ParseObjectUri(c.text) == c.object);
    CHECK(CheckUri(c.uri).ok());
  }
}

TEST_CASE("a wrong URI of an object is refused, and the message has no hidden characters") {
  const struct {
    std::string uri, why;
  } cases[] = {
      {"", "expected s3://BUCKET/KEY or gs://BUCKET/KEY"},
      {"/local", "expected s3://"},
      {"S3://bucket/x", "expected s3://"},
      {"s3:/bucket/x", "expected s3://"},
      {"s3://", "3 to 63 characters"},
      {"s3:///x", "3 to 63 characters"},
      {"s3://ab/x", "3 to 63 characters"},
      {"s3://" + std::string(64, 'b'), "3 to 63 characters"},
      {"s3://my_bucket/x", "characters a-z 0-9 . -"},
      {"s3://Bucket/x", "characters a-z 0-9 . -"},
      {"s3://user@bucket/x", "characters a-z 0-9 . -"},
      {"s3://bucket:80/x", "characters a-z 0-9 . -"},
      {"gs://bück/x", "characters a-z 0-9 . - _"},
      {"s3://-bucket/x", "begins and ends with a letter or a digit"},
      {"s3://bucket./x", "begins and ends with a letter or a digit"},
      {"gs://_bucket/x", "begins and ends with a letter or a digit"},
      {"s3://one..two/x", "no adjacent dots"},
      {"s3://bucket/" + std::string(1025, 'k'), "at most 1,024 bytes"},
      {"s3://bucket//x", "a name between two slashes"},
      {"s3://bucket/a//x", "a name between two slashes"},
      {"s3://bucket/.", "no names `.` and `..`"},
      {"s3://bucket/../x", "no names `.` and `..`"},
      {"s3://bucket/a/..", "no names `.` and `..`"},
      {"s3://bucket/a/../", "no names `.` and `..`"},
      {"s3://bucket/a/./x", "no names `.` and `..`"},
      {"s3://bucket/a\nb", "no control characters"},
      {std::string("s3://bucket/a\0b", 15), "no control characters"},
      {"s3://bucket/a\x7f", "no control characters"},
      {"s3://bucket/a\xC2\x85", "no control characters"},
      {"s3://bucket/a\xFF", "UTF-8"},
      {"s3://bucket/a\xC0\xAF", "UTF-8"},
  };
  for (const auto& c : cases) {
    INFO(c.uri);
    const absl::Status status = ParseObjectUri(c.uri).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK_THAT(std::string(status.message()),
               Catch::StartsWith("bad URI of an object: ") && Catch::Contains(c.why));
    CHECK(status.message().size() < 400);
    for (const char byte : status.message()) CHECK(static_cast<unsigned char>(byte) >= ' ');
  }
}

TEST_CASE("a user may name local paths and objects, and other schemes are refused by name") {
  for (const char* uri : {"/x/y", "relative/y", "file:///x", "s3://bucket", "gs://bucket/x"})
    CHECK(CheckUri(uri).ok());
  const absl::Status hdfs = CheckUri("hdfs://host/x");
  CHECK(hdfs.code() == absl::StatusCode::kUnimplemented);
  CHECK(hdfs.message() ==
        "unsupported URI scheme: scheme=hdfs uri=hdfs://host/x supported=file,s3,gs");
  CHECK(CheckUri("S3://bucket/x").code() == absl::StatusCode::kUnimplemented);
  CHECK(CheckUri("https://host/x").code() == absl::StatusCode::kUnimplemented);
  CHECK(CheckUri("file://host/x").code() == absl::StatusCode::kInvalidArgument);
  CHECK(CheckUri("s3://bucket/../x").code() == absl::StatusCode::kInvalidArgument);
  CHECK_FALSE(IsObjectUri("/s3://bucket"));
  CHECK_FALSE(IsObjectUri("s3:"));
}

}  // namespace
}  // namespace evergrad::fs

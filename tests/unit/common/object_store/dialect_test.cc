#include "common/object_store/dialect.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace evergrad::object_store {
namespace {

TEST_CASE("the address of an object follows the place of the bucket") {
  struct Case {
    std::string endpoint;
    bool in_path;
    std::string host, path, url, bucket_url;
  };
  const std::vector<Case> cases = {
      {"https://s3.example", true, "s3.example", "/my-bucket/a key/é+",
       "https://s3.example/my-bucket/a%20key/%C3%A9%2B?partNumber=1&uploadId=x%2F%3D",
       "https://s3.example/my-bucket"},
      {"https://s3.example", false, "my-bucket.s3.example", "/a key/é+",
       "https://my-bucket.s3.example/a%20key/%C3%A9%2B?partNumber=1&uploadId=x%2F%3D",
       "https://my-bucket.s3.example/"},
      {"http://127.0.0.1:9000", true, "127.0.0.1:9000", "/my-bucket/a key/é+",
       "http://127.0.0.1:9000/my-bucket/a%20key/%C3%A9%2B?partNumber=1&uploadId=x%2F%3D",
       "http://127.0.0.1:9000/my-bucket"},
      {"https://s3.example:443", true, "s3.example", "/my-bucket/a key/é+",
       "https://s3.example/my-bucket/a%20key/%C3%A9%2B?partNumber=1&uploadId=x%2F%3D",
       "https://s3.example/my-bucket"},
      {"http://localhost:80", true, "localhost", "/my-bucket/a key/é+",
       "http://localhost/my-bucket/a%20key/%C3%A9%2B?partNumber=1&uploadId=x%2F%3D",
       "http://localhost/my-bucket"},
      {"http://localhost:443", true, "localhost:443", "/my-bucket/a key/é+",
       "http://localhost:443/my-bucket/a%20key/%C3%A9%2B?partNumber=1&uploadId=x%2F%3D",
       "http://localhost:443/my-bucket"},
  };
  for (const Case& one : cases) {
    CAPTURE(one.endpoint, one.in_path);
    const BucketAddress address(fs::StoreKind::kS3, {one.endpoint, "region", one.in_path},
                                "my-bucket");
    CHECK(address.host() == one.host);
    CHECK(address.PathOf("a key/é+") == one.path);
    CHECK(address.UrlOf("a key/é+", {{"uploadId", "x/="}, {"partNumber", "1"}}) == one.url);
    CHECK(address.UrlOf("", {}) == one.bucket_url);
  }
}

TEST_CASE("messages and copies name an object by its bucket and key") {
  const Endpoint endpoint{"https://s3.example", "region", false};
  const BucketAddress s3(fs::StoreKind::kS3, endpoint, "bucket");
  const BucketAddress gcs(fs::StoreKind::kGcs, endpoint, "bucket");
  CHECK(s3.UriOf("a key/b") == "s3://bucket/a key/b");
  CHECK(s3.UriOf("") == "s3://bucket");
  CHECK(gcs.UriOf("a key/b") == "gs://bucket/a key/b");
  CHECK(gcs.CopySourceOf("a key/b?") == "bucket/a%20key/b%3F");
}

TEST_CASE("marks are 32 hexadecimal digits") {
  CHECK(MarkOf(1, 0xABCDEF) == "00000000000000010000000000abcdef");
  CHECK(IsMark(MarkOf(~0ull, 0)));
  CHECK_FALSE(IsMark(""));
  CHECK_FALSE(IsMark("00000000000000010000000000ABCDEF"));
  CHECK_FALSE(IsMark("00000000000000010000000000abcde"));
  CHECK_FALSE(IsMark("00000000000000010000000000abcdef0"));
  CHECK_FALSE(IsMark("0000000000000001000000000 abcdef"));
}

TEST_CASE("keys of objects that exist only during a call are recognized") {
  const std::string mark = MarkOf(1, 2);
  CHECK(TemporaryKey("runs/a", mark) == "runs/a.evergrad-part-" + mark);
  CHECK(ProbeKey("runs/a", mark) == "runs/.evergrad-probe-" + mark);
  CHECK(ProbeKey("a", mark) == ".evergrad-probe-" + mark);
  CHECK(ProbeKey("runs/", mark) == "runs/.evergrad-probe-" + mark);
  for (const std::string& key : {TemporaryKey("runs/a", mark), TemporaryKey("a", mark),
                                 ProbeKey("runs/a", mark), ProbeKey("a", mark)}) {
    CAPTURE(key);
    CHECK(IsInternalKey(key));
    CHECK_FALSE(IsInternalKey(key + "0"));
    CHECK_FALSE(IsInternalKey(key + "/a"));
    CHECK_FALSE(IsInternalKey(key.substr(0, key.size() - 1)));
  }
  for (const std::string& key :
       {std::string(), std::string("a"), mark, "runs/" + mark, "x.evergrad-probe-" + mark,
        std::string("runs/.evergrad-part"), std::string(".evergrad-part-")}) {
    CAPTURE(key);
    CHECK_FALSE(IsInternalKey(key));
  }
}

}  // namespace
}  // namespace evergrad::object_store

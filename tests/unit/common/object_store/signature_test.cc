#include "common/object_store/signature.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "tests/support/paths.h"

namespace evergrad::object_store {
namespace {

using nlohmann::json;
using Pairs = std::vector<std::pair<std::string, std::string>>;

json Golden() {
  std::ifstream in(test::SourceDir() + "/tests/golden/object_store/signatures.json");
  return json::parse(in, nullptr, false);
}

struct SignedRow {
  RequestToSign request;
  SigningScope scope;
  Credentials credentials;
  std::string body;
};

std::string TextOf(const json& row, const char* field) { return row[field].get<std::string>(); }

void Fill(const json& row, SignedRow* out) {
  out->request.method = TextOf(row, "method");
  out->request.host = TextOf(row, "host");
  out->request.path = TextOf(row, "path");
  out->request.query = row["query"].get<Pairs>();
  for (const json& header : row["headers"])
    out->request.headers.push_back({header[0].get<std::string>(), header[1].get<std::string>()});
  for (int i = 0; i < row["body_times"].get<int>(); ++i) out->body += TextOf(row, "body");
  out->request.body = out->body;
  out->scope.kind = TextOf(row, "kind") == "gcs" ? fs::StoreKind::kGcs : fs::StoreKind::kS3;
  out->scope.region = TextOf(row, "region");
  out->scope.service = TextOf(row, "service");
  out->scope.wall_ms = row["wall_ms"].get<std::int64_t>();
  out->credentials.access_key_id = TextOf(row, "access_key_id");
  out->credentials.secret_access_key = TextOf(row, "secret_access_key");
  out->credentials.session_token = TextOf(row, "session_token");
}

Pairs Sorted(const std::vector<http::Header>& headers) {
  Pairs pairs;
  for (const http::Header& header : headers) pairs.emplace_back(header.name, header.value);
  std::sort(pairs.begin(), pairs.end());
  return pairs;
}

TEST_CASE("each request of the golden file gets the headers of botocore's signer") {
  const json golden = Golden();
  REQUIRE(golden.is_object());
  std::set<std::string> kinds;
  int count = 0;
  for (const json& row : golden["requests"]) {
    INFO(TextOf(row, "name"));
    SignedRow one;
    Fill(row, &one);
    CHECK(Sorted(Sign(one.request, one.scope, one.credentials)) == row["want"].get<Pairs>());
    kinds.insert(TextOf(row, "service"));
    ++count;
  }
  CHECK(count >= 90);
  CHECK(kinds == std::set<std::string>{"s3", "sts", "storage"});
}

// The examples of "Authenticating Requests: Using the Authorization Header" in the S3 API
// reference. The golden file has three of them.
TEST_CASE("the published example with a date, a storage class and a body has its signature") {
  RequestToSign request;
  request.method = "PUT";
  request.host = "examplebucket.s3.amazonaws.com";
  request.path = "/test$file.text";
  request.headers = {{"Date", "Fri, 24 May 2013 00:00:00 GMT"},
                     {"x-amz-storage-class", "REDUCED_REDUNDANCY"}};
  request.body = "Welcome to Amazon S3.";
  SigningScope scope;
  scope.region = "us-east-1";
  scope.wall_ms = 1'369'353'600'000;
  Credentials credentials;
  credentials.access_key_id = "AKIAIOSFODNN7EXAMPLE";
  credentials.secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
  const auto headers = Sign(request, scope, credentials);
  REQUIRE(headers.size() == 3);
  CHECK(headers[0] == http::Header{"x-amz-date", "20130524T000000Z"});
  CHECK(headers[1].name == "x-amz-content-sha256");
  CHECK(headers[2].name == "authorization");
  CHECK(headers[2].value ==
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        "SignedHeaders=date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class, "
        "Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

TEST_CASE("a change of any part of a request changes the signature") {
  const json golden = Golden();
  REQUIRE(golden.is_object());
  const auto authorization = [&](const std::function<void(SignedRow*)>& change) {
    SignedRow one;
    for (const json& row : golden["requests"])
      if (TextOf(row, "name") == "all at once") Fill(row, &one);
    change(&one);
    const auto headers = Sign(one.request, one.scope, one.credentials);
    // The scope is a part of the text, so only the signature itself is compared.
    return headers.back().value.substr(headers.back().value.find("Signature="));
  };
  const std::set<std::string> signatures{
      authorization([](SignedRow*) {}),
      authorization([](SignedRow* one) { one->request.method = "POST"; }),
      authorization([](SignedRow* one) { one->request.host = "127.0.0.1:9001"; }),
      authorization([](SignedRow* one) { one->request.path += "x"; }),
      authorization([](SignedRow* one) { one->request.query[0].second = "2"; }),
      authorization([](SignedRow* one) { one->request.headers[0].value = "x"; }),
      authorization([](SignedRow* one) { one->request.body = "hellp"; }),
      authorization([](SignedRow* one) { one->scope.kind = fs::StoreKind::kGcs; }),
      authorization([](SignedRow* one) { one->scope.region = "x"; }),
      authorization([](SignedRow* one) { one->scope.service = "sts"; }),
      authorization([](SignedRow* one) { one->scope.wall_ms += 1000; }),
      authorization([](SignedRow* one) { one->credentials.secret_access_key += "x"; }),
      authorization([](SignedRow* one) { one->credentials.session_token = "x"; })};
  CHECK(signatures.size() == 13);
  for (const std::string& signature : signatures)
    CHECK(signature.size() == absl::string_view("Signature=").size() + 64);
}

TEST_CASE("a request with a bearer token is not signed") {
  RequestToSign request;
  request.method = "GET";
  request.path = "/bucket/key";
  SigningScope scope;
  scope.kind = fs::StoreKind::kGcs;
  Credentials credentials;
  credentials.bearer_token = "ya29.token";
  credentials.access_key_id = "ignored";
  CHECK(Sign(request, scope, credentials) ==
        std::vector<http::Header>{{"authorization", "Bearer ya29.token"}});
}

TEST_CASE("the service of GCS is always storage, and a session token has no header there") {
  RequestToSign request;
  request.method = "GET";
  request.path = "/";
  SigningScope scope;
  scope.kind = fs::StoreKind::kGcs;
  scope.region = "auto";
  scope.service = "s3";
  Credentials credentials;
  credentials.access_key_id = "GOOG1E";
  credentials.session_token = "ignored";
  const auto headers = Sign(request, scope, credentials);
  REQUIRE(headers.size() == 3);
  CHECK(headers[0] == http::Header{"x-goog-date", "19700101T000000Z"});
  CHECK(absl::StartsWith(headers[2].value,
                         "GOOG4-HMAC-SHA256 Credential=GOOG1E/19700101/auto/storage/goog4_request, "
                         "SignedHeaders=host;x-goog-content-sha256;x-goog-date, Signature="));
}

TEST_CASE("percent-encoding keeps unreserved characters only, and a slash on request") {
  std::string unreserved;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string one(1, static_cast<char>(byte)), encoded = PercentEncode(one, true);
    if (encoded == one)
      unreserved += one;
    else
      CHECK(encoded.size() == 3);
  }
  CHECK(unreserved == "-./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz~");
  CHECK(PercentEncode("a b/ü+%", true) == "a%20b/%C3%BC%2B%25");
  CHECK(PercentEncode("a b/ü+%", false) == "a%20b%2F%C3%BC%2B%25");
  CHECK(PercentEncode("", false).empty());
}

TEST_CASE("a query is encoded and sorted by its encoded names, then by its encoded values") {
  CHECK(EncodeQuery({}).empty());
  CHECK(EncodeQuery({{"uploads", ""}}) == "uploads=");
  CHECK(EncodeQuery({{"prefix", "a/b"}, {"list-type", "2"}}) == "list-type=2&prefix=a%2Fb");
  CHECK(EncodeQuery({{"z", "1"}, {"é", "2"}, {"a-", "3"}, {"a", "4"}, {"a", ""}}) ==
        "%C3%A9=2&a=&a=4&a-=3&z=1");
}

}  // namespace
}  // namespace evergrad::object_store

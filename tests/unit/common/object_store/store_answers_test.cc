#include "common/object_store/store_answers.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace evergrad::object_store {
namespace {

http::Response ResponseWith(std::string body, std::vector<http::Header> headers = {}) {
  http::Response response;
  response.status = 400;
  response.body = std::move(body);
  response.headers = std::move(headers);
  return response;
}

std::string PageWith(absl::string_view content) {
  return absl::StrCat(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>bucket</Name>",
      content, "</ListBucketResult>");
}

constexpr char kLast[] = "<IsTruncated>false</IsTruncated>";

TEST_CASE("a page of a list has keys, sizes, prefixes and the token of the next page") {
  const absl::StatusOr<ListPage> page = ReadListPage(
      PageWith("<Prefix>runs/</Prefix><KeyCount>4</KeyCount><MaxKeys>1000</MaxKeys>"
               "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
               "<NextContinuationToken>1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=</"
               "NextContinuationToken>"
               "<Contents><Key>runs/a+b</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
               "<ETag>&quot;x&quot;</ETag><Size>12</Size><StorageClass>STANDARD</StorageClass>"
               "</Contents>"
               "<Contents><Key>runs/%E2%82%AC%2B%26%3C%0a</Key><Size>0</Size></Contents>"
               "<CommonPrefixes><Prefix>runs/z/</Prefix></CommonPrefixes>"
               "<CommonPrefixes><Prefix>runs/%20/</Prefix></CommonPrefixes>"),
      "runs/", "");
  REQUIRE(page.ok());
  REQUIRE(page->objects.size() == 2);
  CHECK(page->objects[0].key == "runs/a b");
  CHECK(page->objects[0].bytes == 12);
  CHECK(page->objects[1].key == "runs/\xE2\x82\xAC+&<\n");
  CHECK(page->objects[1].bytes == 0);
  CHECK(page->prefixes == std::vector<std::string>{"runs/ /", "runs/z/"});
  CHECK(page->next == "1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=");
}

TEST_CASE("without an encoding, keys are plain text of XML") {
  const absl::StatusOr<ListPage> page = ReadListPage(
      PageWith(absl::StrCat("<Contents><Key>a+b%20&amp;&#65; </Key><Size>1</Size></Contents>"
                            "<Contents><Key> </Key><Size>2</Size></Contents>"
                            "<Contents><Key><![CDATA[<c>]]></Key><Size>3</Size></Contents>",
                            kLast)),
      "", "");
  REQUIRE(page.ok());
  REQUIRE(page->objects.size() == 3);
  CHECK(page->objects[0].key == " ");
  CHECK(page->objects[1].key == "<c>");
  CHECK(page->objects[2].key == "a+b%20&A ");
  CHECK(page->next.empty());
}

TEST_CASE("an empty page is valid") {
  for (const std::string& body : {PageWith(kLast), absl::StrCat("\xEF\xBB\xBF", PageWith(kLast)),
                                  std::string("<ListBucketResult><IsTruncated>false</IsTruncated>"
                                              "</ListBucketResult>\n \n")}) {
    const absl::StatusOr<ListPage> page = ReadListPage(body, "runs/", "token");
    REQUIRE(page.ok());
    CHECK(page->objects.empty());
    CHECK(page->prefixes.empty());
    CHECK(page->next.empty());
  }
}

TEST_CASE("a page that is not valid is an error that names the mistake") {
  const auto object = [](absl::string_view key, absl::string_view size) {
    return absl::StrCat("<Contents><Key>", key, "</Key><Size>", size, "</Size></Contents>");
  };
  const std::string encoded = "<EncodingType>url</EncodingType>";
  struct Case {
    std::string body, mistake;
  };
  const std::vector<Case> cases = {
      {"", "it has no beginning"},
      {"no XML", "it has no beginning"},
      {absl::StrCat("text", PageWith(kLast)), "it has no beginning"},
      {"<", "it has no end"},
      {"<!-- only a comment -->", ""},
      {"<ListBucketResult>", ""},
      {"<ListBucketResult><IsTruncated>false</IsTruncated>", ""},
      {"<ListBucketResult><IsTruncated>false</ListBucketResult></IsTruncated>", ""},
      {absl::StrCat(PageWith(kLast), "text"), "it has no end"},
      {absl::StrCat(PageWith(kLast), PageWith(kLast)), "it has two roots"},
      {"<html><body/></html>", "another root: want=ListBucketResult got=html"},
      {"<Error><Code>InternalError</Code></Error>", "another root"},
      {PageWith(""), "<IsTruncated>"},
      {PageWith("<IsTruncated>maybe</IsTruncated>"), "<IsTruncated>: got=maybe"},
      {PageWith("<IsTruncated>true</IsTruncated>"), "token of the next page: bytes=0"},
      {PageWith("<IsTruncated>true</IsTruncated><NextContinuationToken/>"), "token of the next"},
      {PageWith("<IsTruncated>true</IsTruncated><NextContinuationToken>token"
                "</NextContinuationToken>"),
       "followed by itself"},
      {PageWith(absl::StrCat("<IsTruncated>true</IsTruncated><NextContinuationToken>",
                             std::string(kTokenBytesMax + 1, 't'), "</NextContinuationToken>")),
       "token of the next page"},
      {PageWith(absl::StrCat(kLast, object("runs/a", "-1"))), "a wrong size: key=runs/a size=-1"},
      {PageWith(absl::StrCat(kLast, object("runs/a", ""))), "a wrong size"},
      {PageWith(absl::StrCat(kLast, object("runs/a", " 1"))), "a wrong size"},
      {PageWith(absl::StrCat(kLast, object("runs/a", "1e3"))), "a wrong size"},
      {PageWith(absl::StrCat(kLast, object("runs/a", "1000000000000000000"))), "a wrong size"},
      {PageWith(absl::StrCat(kLast, object("runs/a", std::string(1'000'000, '9')))),
       "a wrong size"},
      {PageWith(absl::StrCat(kLast, object("runs/a", "<b>1</b>"))), "a wrong size"},
      {PageWith(absl::StrCat(kLast, object("other/a", "1"))), "without the prefix: key=other/a"},
      {PageWith(absl::StrCat(kLast, object("", "1"))), "wrong length: bytes=0"},
      {PageWith(absl::StrCat(kLast, object("<b>runs/a</b>", "1"))), "without <Key>"},
      {PageWith(absl::StrCat(kLast, object(absl::StrCat("runs/", std::string(1'020, 'k')), "1"))),
       "wrong length: bytes=1025"},
      {PageWith(absl::StrCat(kLast, object("runs/\xff", "1"))), "not UTF-8"},
      {PageWith(absl::StrCat(kLast, encoded, object("runs/%ff", "1"))), "not UTF-8"},
      {PageWith(absl::StrCat(kLast, encoded, object("runs/%", "1"))), "wrong percent sign"},
      {PageWith(absl::StrCat(kLast, encoded, object("runs/%4", "1"))), "wrong percent sign"},
      {PageWith(absl::StrCat(kLast, encoded, object("runs/%4g", "1"))), "wrong percent sign"},
      {PageWith(absl::StrCat(kLast, "<Contents><Size>1</Size></Contents>")), "without <Key>"},
      {PageWith(absl::StrCat(kLast,
                             "<Contents><Key>runs/a</Key><Key>runs/b</Key><Size>1</Size>"
                             "</Contents>")),
       "without <Key>"},
      {PageWith(absl::StrCat(kLast, "<CommonPrefixes/>")), "without <Prefix>"},
      {PageWith(absl::StrCat(kLast, "<CommonPrefixes><Prefix>runs/a</Prefix></CommonPrefixes>")),
       "without a slash"},
      {absl::StrCat("<!DOCTYPE a [<!ENTITY b \"c\">]>", PageWith(kLast)), "a document type"},
      {absl::StrCat("<!DOCTYPE a SYSTEM \"file:///etc/passwd\">", PageWith(kLast)),
       "a document type"},
      {PageWith(absl::StrCat(kLast, std::string(1, '\0'))), "a NUL byte"},
      {PageWith(absl::StrCat(kLast, std::string(kAnswerBytesMax, ' '))), "it is too long"},
      {PageWith(
           absl::StrCat(kLast, absl::StrReplaceAll(std::string(100'001, 'x'), {{"x", "<a></a>"}}))),
       "too many tags"},
  };
  for (const Case& one : cases) {
    CAPTURE(one.body.substr(0, 300), one.mistake);
    const absl::StatusOr<ListPage> page = ReadListPage(one.body, "runs/", "token");
    REQUIRE_FALSE(page.ok());
    CHECK(page.status().code() == absl::StatusCode::kDataLoss);
    CHECK_THAT(std::string(page.status().message()), Catch::Contains(one.mistake));
    CHECK(page.status().message().size() < 500);
  }
}

TEST_CASE("an entity that the document does not define stays text") {
  const absl::StatusOr<ListPage> page = ReadListPage(
      PageWith(absl::StrCat("<Contents><Key>a&evil;b</Key><Size>1</Size></Contents>", kLast)), "",
      "");
  REQUIRE(page.ok());
  CHECK(page->objects.at(0).key == "a&evil;b");
}

TEST_CASE("deep nesting is read without recursion and ignored") {
  constexpr int kDepth = 90'000;
  std::string nested;
  for (int i = 0; i < kDepth; ++i) nested += "<a>";
  for (int i = 0; i < kDepth; ++i) nested += "</a>";
  CHECK(ReadListPage(PageWith(absl::StrCat(nested, kLast)), "", "").ok());
}

TEST_CASE("each beginning of a page is an error") {
  const std::string whole = PageWith(
      "<Contents><Key>k</Key><Size>12</Size></Contents>"
      "<CommonPrefixes><Prefix>p/</Prefix></CommonPrefixes><IsTruncated>false</IsTruncated>");
  REQUIRE(ReadListPage(whole, "", "").ok());
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    CAPTURE(bytes);
    CHECK_FALSE(ReadListPage(whole.substr(0, bytes), "", "").ok());
  }
}

TEST_CASE("an error has the values of its body and its headers") {
  const StoreError error = ReadError(ResponseWith(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>AuthorizationHeaderMalformed</Code>"
      "<Message>The region &apos;us-east-1&apos; is wrong</Message><Region>eu-west-1</Region>"
      "<Endpoint>bucket.s3.example</Endpoint><RequestId>FROMBODY</RequestId>"
      "<HostId>x</HostId></Error>"));
  CHECK(error.code == "AuthorizationHeaderMalformed");
  CHECK(error.message == "The region 'us-east-1' is wrong");
  CHECK(error.region == "eu-west-1");
  CHECK(error.endpoint == "bucket.s3.example");
  CHECK(error.request_id == "FROMBODY");

  const StoreError from_headers = ReadError(ResponseWith(
      "", {{"x-amz-request-id", "4442587FB7D0A2F9"}, {"x-amz-bucket-region", "eu-central-1"}}));
  CHECK(from_headers.code.empty());
  CHECK(from_headers.request_id == "4442587FB7D0A2F9");
  CHECK(from_headers.region == "eu-central-1");
  CHECK(ReadError(ResponseWith("", {{"x-guploader-uploadid", "ABC"}})).request_id == "ABC");
  CHECK(ReadError(ResponseWith("<ErrorResponse><Error><Code>Throttled</Code></Error>"
                               "</ErrorResponse>"))
            .code == "Throttled");
}

TEST_CASE("an error without a valid body has no code") {
  for (const std::string& body : std::vector<std::string>{
           "", "<html>Bad Gateway</html>", "{\"error\": \"x\"}", "<Error><Code>a b</Code></Error>",
           "<Error><Code>a\nuri=evil</Code></Error>", "<Error><Code><x/></Code></Error>",
           absl::StrCat("<Error><Code>", std::string(65, 'A'), "</Code></Error>"),
           "<!DOCTYPE a><Error><Code>A</Code></Error>", "<Error><Code>A</Code>"}) {
    CAPTURE(body);
    CHECK(ReadError(ResponseWith(body)).code.empty());
  }
  CHECK(ReadError(ResponseWith("<Error><Region>eu west</Region></Error>")).region.empty());
  CHECK(ReadError(ResponseWith("", {{"x-amz-bucket-region", "../x"}})).region.empty());
}

TEST_CASE("a body has an error if its root says so") {
  REQUIRE(ErrorInBody("\n\n <Error><Code>InternalError</Code></Error>").has_value());
  CHECK(ErrorInBody("\n\n <Error><Code>InternalError</Code></Error>")->code == "InternalError");
  CHECK(ErrorInBody("<Error/>").has_value());
  CHECK_FALSE(ErrorInBody("").has_value());
  CHECK_FALSE(ErrorInBody("<Error><Code>InternalError").has_value());
  CHECK_FALSE(ErrorInBody("<CompleteMultipartUploadResult><Error/>"
                          "</CompleteMultipartUploadResult>")
                  .has_value());
}

TEST_CASE("the id of an upload has only visible characters") {
  const auto body_with = [](absl::string_view id) {
    return absl::StrCat("<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>",
                        id, "</UploadId></InitiateMultipartUploadResult>");
  };
  CHECK(ReadUploadId(body_with("VXBsb2FkIElE+/=._-~")).value() == "VXBsb2FkIElE+/=._-~");
  for (const std::string& id :
       {std::string(), std::string("a b"), std::string("a\nb"), std::string("\xc3\xa9"),
        std::string("<x/>"), std::string(kUploadIdBytesMax + 1, 'u')}) {
    CAPTURE(id);
    CHECK(ReadUploadId(body_with(id)).status().code() == absl::StatusCode::kDataLoss);
  }
  CHECK(ReadUploadId("<Other><UploadId>u</UploadId></Other>").status().code() ==
        absl::StatusCode::kDataLoss);
}

TEST_CASE("a completion is confirmed by its root") {
  CHECK(CheckCompletion("<CompleteMultipartUploadResult><ETag>e</ETag>"
                        "</CompleteMultipartUploadResult>")
            .ok());
  for (const std::string body : {"", "OK", "<Error/>", "<CompleteMultipartUploadResult>"}) {
    CAPTURE(body);
    CHECK(CheckCompletion(body).code() == absl::StatusCode::kDataLoss);
  }
}

TEST_CASE("a completion lists the parts with their tags") {
  CHECK(CompletionBody({{1, "\"a\""}, {2, "<&>"}}) ==
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"a\"</ETag></Part>"
        "<Part><PartNumber>2</PartNumber><ETag>&lt;&amp;&gt;</ETag></Part>"
        "</CompleteMultipartUpload>");
}

TEST_CASE("a count has digits only") {
  CHECK(ParseCount("0") == 0);
  CHECK(ParseCount("007") == 7);
  CHECK(ParseCount("999999999999999999") == 999'999'999'999'999'999u);
  for (const char* text : {"", "-1", "+1", " 1", "1 ", "1.0", "0x1", "1000000000000000000"}) {
    CAPTURE(text);
    CHECK_FALSE(ParseCount(text).has_value());
  }
}

}  // namespace
}  // namespace evergrad::object_store

#include "tests/support/fake_store/fake_bucket.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/object_store/signature.h"

namespace evergrad::test {
namespace {

using object_store::PercentEncode;

constexpr absl::string_view kTokenPrefix = "after:";

std::string XmlText(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

// Reads the next <Part> of a completion.
bool TakePart(absl::string_view* body, int* number, std::string* etag) {
  if (!absl::ConsumePrefix(body, "<Part><PartNumber>")) return false;
  const std::size_t middle = body->find("</PartNumber><ETag>"), end = body->find("</ETag></Part>");
  if (middle == absl::string_view::npos || end == absl::string_view::npos) return false;
  if (!absl::SimpleAtoi(body->substr(0, middle), number)) return false;
  const std::size_t begin = middle + absl::string_view("</PartNumber><ETag>").size();
  *etag = std::string(body->substr(begin, end - begin));
  body->remove_prefix(end + absl::string_view("</ETag></Part>").size());
  return true;
}

}  // namespace

http::Response StoreError(int status, absl::string_view code, absl::string_view more) {
  return ResponseOf(
      status, absl::StrCat("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>", code,
                           "</Code><Message>a message of the store</Message>", more, "</Error>"));
}

std::optional<std::string> DecodeUrl(absl::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const absl::string_view digits = text.substr(i + 1, 2);
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(digits[0])) ||
        !absl::ascii_isxdigit(static_cast<unsigned char>(digits[1])))
      return std::nullopt;
    out += absl::HexStringToBytes(digits);
    i += 2;
  }
  return out;
}

std::string StoreCall::Query(absl::string_view name) const {
  for (const auto& [key_name, value] : query)
    if (key_name == name) return value;
  return "";
}

bool StoreCall::Has(absl::string_view name) const {
  return std::any_of(query.begin(), query.end(),
                     [&](const auto& entry) { return entry.first == name; });
}

std::string FakeBucket::MarkHeader() const {
  return is_gcs_ ? "x-goog-meta-evergrad-writer" : "x-amz-meta-evergrad-writer";
}

std::string FakeBucket::NewEtag() { return absl::StrCat("\"etag-", ++names_, "\""); }

http::Response FakeBucket::Answer(const StoreCall& call) {
  const std::string& method = call.request->method;
  const auto has_only = [&](const std::set<std::string>& names) {
    return call.query.size() == names.size() &&
           std::all_of(names.begin(), names.end(),
                       [&](const std::string& name) { return call.Has(name); });
  };
  if (call.key.empty()) return method == "GET" ? List(call) : StoreError(405, "MethodNotAllowed");
  if (method == "GET" || method == "HEAD") {
    if (call.query.empty()) return Get(call);
  } else if (method == "PUT") {
    if (has_only({"partNumber", "uploadId"})) return PutPart(call);
    if (call.query.empty()) return call.request->Has("x-goog-copy-source") ? Copy(call) : Put(call);
  } else if (method == "POST") {
    if (has_only({"uploads"})) return Begin(call);
    if (has_only({"uploadId"})) return Complete(call);
  } else if (method == "DELETE") {
    if (call.query.empty() || has_only({"uploadId"})) return Delete(call);
  }
  return StoreError(400, "InvalidRequest");
}

void FakeBucket::PutObject(const std::string& key, FakeObject object) {
  if (object.etag.empty()) object.etag = NewEtag();
  objects_[key] = std::move(object);
}

http::Response FakeBucket::Get(const StoreCall& call) const {
  const auto found = objects_.find(call.key);
  if (found == objects_.end()) return StoreError(404, "NoSuchKey");
  const FakeObject& object = found->second;
  const std::string condition = call.request->Find("if-match");
  if (!condition.empty() && condition != object.etag) return StoreError(412, "PreconditionFailed");
  http::Response response = ResponseOf(200, object.bytes, object.headers);
  response.headers.push_back({"etag", object.etag});
  if (!object.mark.empty()) response.headers.push_back({MarkHeader(), object.mark});
  const bool is_ranged = call.request->method == "GET" && rules_.honours_ranges;
  const std::string text = is_ranged ? call.request->Find("range") : "";
  if (!text.empty()) {
    const std::vector<std::string> ends = absl::StrSplit(absl::StripPrefix(text, "bytes="), '-');
    std::uint64_t first = 0, last = 0;
    if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &first) ||
        !absl::SimpleAtoi(ends[1], &last) || last < first)
      return StoreError(400, "InvalidArgument");
    const std::uint64_t size = object.bytes.size();
    if (first >= size) {
      http::Response beyond = StoreError(416, "InvalidRange");
      beyond.headers.push_back({"content-range", absl::StrCat("bytes */", size)});
      return beyond;
    }
    last = std::min(last, size - 1);
    response.status = 206;
    response.body = object.bytes.substr(static_cast<std::size_t>(first),
                                        static_cast<std::size_t>(last - first + 1));
    response.headers.push_back(
        {"content-range", absl::StrCat("bytes ", first, "-", last, "/", size)});
  }
  response.headers.push_back({"content-length", absl::StrCat(response.body.size())});
  return response;
}

bool FakeBucket::IsRefused(const StoreCall& call) const {
  const bool is_conditional =
      call.request->Find(is_gcs_ ? "x-goog-if-generation-match" : "if-none-match") ==
      (is_gcs_ ? "0" : "*");
  return is_conditional && rules_.honours_conditions && objects_.count(call.key) != 0;
}

http::Response FakeBucket::Put(const StoreCall& call) {
  if (IsRefused(call)) return StoreError(412, "PreconditionFailed");
  FakeObject object{call.request->body, call.request->Find(MarkHeader()), NewEtag(), {}};
  http::Response response = ResponseOf(200, "", {{"etag", object.etag}});
  objects_[call.key] = std::move(object);
  return response;
}

http::Response FakeBucket::Copy(const StoreCall& call) {
  if (!call.request->body.empty()) return StoreError(400, "InvalidRequest");
  const std::string source = DecodeUrl(call.request->Find("x-goog-copy-source")).value_or("");
  absl::string_view key = source;
  if (!absl::ConsumePrefix(&key, rules_.bucket + "/")) return StoreError(404, "NoSuchBucket");
  const auto found = objects_.find(std::string(key));
  if (found == objects_.end()) return StoreError(404, "NoSuchKey");
  if (IsRefused(call)) return StoreError(412, "PreconditionFailed");
  FakeObject object = found->second;
  object.etag = NewEtag();
  http::Response response = ResponseOf(
      200, absl::StrCat("<CopyObjectResult><ETag>", object.etag, "</ETag></CopyObjectResult>"));
  objects_[call.key] = std::move(object);
  return response;
}

http::Response FakeBucket::Begin(const StoreCall& call) {
  // Characters that must be encoded in a URL.
  const std::string id = absl::StrCat("upload+", ++names_, "/=");
  uploads_[id] = {call.key, call.request->Find(MarkHeader()), {}};
  return ResponseOf(
      200, absl::StrCat("<?xml version=\"1.0\"?>\n<InitiateMultipartUploadResult "
                        "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Bucket>",
                        rules_.bucket, "</Bucket><Key>", XmlText(call.key), "</Key><UploadId>", id,
                        "</UploadId></InitiateMultipartUploadResult>"));
}

http::Response FakeBucket::PutPart(const StoreCall& call) {
  const auto found = uploads_.find(call.Query("uploadId"));
  if (found == uploads_.end() || found->second.key != call.key)
    return StoreError(404, "NoSuchUpload");
  int number = 0;
  if (!absl::SimpleAtoi(call.Query("partNumber"), &number) || number < 1 || number > 10'000)
    return StoreError(400, "InvalidArgument");
  const std::string etag = NewEtag();
  found->second.parts[number] = {call.request->body, "", etag, {}};
  return ResponseOf(200, "", {{"etag", etag}});
}

http::Response FakeBucket::Complete(const StoreCall& call) {
  const auto found = uploads_.find(call.Query("uploadId"));
  if (found == uploads_.end() || found->second.key != call.key)
    return StoreError(404, "NoSuchUpload");
  absl::string_view body = call.request->body;
  if (!absl::ConsumePrefix(&body, "<CompleteMultipartUpload>") ||
      !absl::ConsumeSuffix(&body, "</CompleteMultipartUpload>") || body.empty())
    return StoreError(400, "MalformedXML");
  FakeObject object{"", found->second.mark, NewEtag(), {}};
  int last = 0;
  while (!body.empty()) {
    int number = 0;
    std::string etag;
    if (!TakePart(&body, &number, &etag)) return StoreError(400, "MalformedXML");
    if (number <= last) return StoreError(400, "InvalidPartOrder");
    last = number;
    const auto part = found->second.parts.find(number);
    if (part == found->second.parts.end() || part->second.etag != etag)
      return StoreError(400, "InvalidPart");
    if (!body.empty() && part->second.bytes.size() < rules_.part_bytes_min)
      return StoreError(400, "EntityTooSmall");
    object.bytes += part->second.bytes;
  }
  if (IsRefused(call)) return StoreError(412, "PreconditionFailed");
  uploads_.erase(found);
  http::Response response =
      ResponseOf(200, absl::StrCat("<?xml version=\"1.0\"?>\n<CompleteMultipartUploadResult><Key>",
                                   XmlText(call.key), "</Key><ETag>", object.etag,
                                   "</ETag></CompleteMultipartUploadResult>"));
  objects_[call.key] = std::move(object);
  return response;
}

http::Response FakeBucket::Delete(const StoreCall& call) {
  if (!call.Has("uploadId")) {
    // GCS answers 404 for a missing object, and S3 does not.
    const bool existed = objects_.erase(call.key) != 0;
    return existed || !is_gcs_ ? ResponseOf(204) : StoreError(404, "NoSuchKey");
  }
  const auto found = uploads_.find(call.Query("uploadId"));
  if (found == uploads_.end() || found->second.key != call.key)
    return StoreError(404, "NoSuchUpload");
  uploads_.erase(found);
  return ResponseOf(204);
}

http::Response FakeBucket::List(const StoreCall& call) const {
  for (const auto& [name, value] : call.query) {
    static const std::set<std::string> kKnown{"list-type", "max-keys",           "encoding-type",
                                              "prefix",    "continuation-token", "delimiter"};
    if (kKnown.count(name) == 0) return StoreError(400, "InvalidArgument");
  }
  if (call.Query("list-type") != "2") return StoreError(400, "InvalidArgument");
  const std::string prefix = call.Query("prefix"), delimiter = call.Query("delimiter");
  const bool is_encoded = call.Query("encoding-type") == "url";
  const auto text_of = [&](const std::string& key) {
    return is_encoded ? absl::StrReplaceAll(PercentEncode(key, true), {{"%20", "+"}})
                      : XmlText(key);
  };
  std::string after = call.Query("continuation-token");
  if (!after.empty() && !absl::StartsWith(after, kTokenPrefix))
    return StoreError(400, "InvalidToken");
  after = std::string(absl::StripPrefix(after, kTokenPrefix));
  std::size_t entries_max = rules_.page_entries_max, entries = 0, asked = 0;
  if (absl::SimpleAtoi(call.Query("max-keys"), &asked)) entries_max = std::min(entries_max, asked);
  bool is_truncated = false;
  std::string text, last = after;
  for (auto it = objects_.lower_bound(prefix);
       it != objects_.end() && absl::StartsWith(it->first, prefix); ++it) {
    std::string name = it->first;
    const std::size_t end =
        delimiter.empty() ? std::string::npos : name.find(delimiter, prefix.size());
    if (end != std::string::npos) name.resize(end + delimiter.size());
    if (!last.empty() && name <= last) continue;
    is_truncated = entries == entries_max;
    if (is_truncated) break;
    ++entries;
    last = name;
    if (end != std::string::npos) {
      absl::StrAppend(&text, "<CommonPrefixes><Prefix>", text_of(name),
                      "</Prefix></CommonPrefixes>");
    } else {
      absl::StrAppend(&text, "<Contents><Key>", text_of(name), "</Key><ETag>", it->second.etag,
                      "</ETag><Size>", it->second.bytes.size(), "</Size></Contents>");
    }
  }
  return ResponseOf(
      200,
      absl::StrCat("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult "
                   "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>",
                   rules_.bucket, "</Name>", is_encoded ? "<EncodingType>url</EncodingType>" : "",
                   "<IsTruncated>", is_truncated ? "true" : "false", "</IsTruncated>", text,
                   is_truncated ? absl::StrCat("<NextContinuationToken>", kTokenPrefix,
                                               XmlText(last), "</NextContinuationToken>")
                                : "",
                   "</ListBucketResult>"));
}

}  // namespace evergrad::test

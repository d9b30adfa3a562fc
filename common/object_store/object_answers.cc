#include "common/object_store/object_answers.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/object_store/dialect.h"
#include "common/object_store/store_answers.h"
#include "common/snapshot/checksum.h"

namespace evergrad::object_store {
namespace {

constexpr std::size_t kQuotedMax = 100;

absl::Status WrongHeader(absl::string_view name, absl::string_view value) {
  return absl::DataLossError(
      absl::StrCat("a wrong header: name=", name, " value=", Quoted(value, kQuotedMax)));
}

struct ContentRange {
  std::uint64_t first = 0, last = 0;
  std::optional<std::uint64_t> size;  // nullopt for '*'
};

// Parses "bytes 0-99/1234" or "bytes 0-99/*".
std::optional<ContentRange> ParseContentRange(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, "bytes ")) return std::nullopt;
  const std::size_t dash = text.find('-'), slash = text.find('/');
  if (dash == absl::string_view::npos || slash == absl::string_view::npos || dash > slash)
    return std::nullopt;
  const auto first = ParseCount(text.substr(0, dash)),
             last = ParseCount(text.substr(dash + 1, slash - dash - 1));
  const absl::string_view size = text.substr(slash + 1);
  ContentRange range;
  if (size != "*") {
    range.size = ParseCount(size);
    if (!range.size) return std::nullopt;
  }
  if (!first || !last || *last < *first || (range.size && *last >= *range.size))
    return std::nullopt;
  range.first = *first;
  range.last = *last;
  return range;
}

std::string CrcText(absl::string_view body) {
  const std::uint32_t crc = snapshot::Crc32c(snapshot::BytesOf(body));
  const char bytes[] = {static_cast<char>(crc >> 24), static_cast<char>(crc >> 16),
                        static_cast<char>(crc >> 8), static_cast<char>(crc)};
  return absl::Base64Escape(absl::string_view(bytes, sizeof(bytes)));
}

std::string Sha256Text(absl::string_view body) {
  snapshot::Sha256 sha256;
  sha256.Update(snapshot::BytesOf(body));
  return absl::Base64Escape(sha256.Bytes());
}

absl::Status Compare(absl::string_view name, absl::string_view want, absl::string_view got) {
  if (want == got) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the checksum of the object does not match: name=", name,
                                          " want=", Quoted(want, kQuotedMax), " got=", got));
}

// Compares the checksums that describe the whole object with the bytes of the whole object.
absl::Status CheckWhole(const http::Response& response) {
  const absl::string_view stored = response.Find("x-goog-stored-content-encoding");
  // GCS decompresses an object that was stored compressed if a proxy asks for that. The checksum is
  // that of the compressed bytes.
  if (!stored.empty() && stored != "identity" && response.Find("content-encoding").empty())
    return absl::OkStatus();
  const absl::string_view crc = response.Find("x-amz-checksum-crc32c");
  const absl::string_view sha256 = response.Find("x-amz-checksum-sha256");
  if (response.Find("x-amz-checksum-type") != "COMPOSITE") {
    if (!crc.empty() && !absl::StrContains(crc, '-'))
      EG_RETURN_IF_ERROR(Compare("x-amz-checksum-crc32c", crc, CrcText(response.body)));
    if (!sha256.empty() && !absl::StrContains(sha256, '-'))
      EG_RETURN_IF_ERROR(Compare("x-amz-checksum-sha256", sha256, Sha256Text(response.body)));
  }
  // GCS sends one header for each checksum, or all of them in one header.
  for (const http::Header& header : response.headers) {
    if (header.name != "x-goog-hash") continue;
    for (absl::string_view hash : absl::StrSplit(header.value, ',')) {
      hash = absl::StripAsciiWhitespace(hash);
      if (absl::ConsumePrefix(&hash, "crc32c="))
        EG_RETURN_IF_ERROR(Compare("x-goog-hash", hash, CrcText(response.body)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckEtag(const http::Response& response, const std::string& etag) {
  const absl::string_view got = response.Find("etag");
  if (etag.empty() || got.empty() || got == etag) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the object has another etag: want=", etag, " got=", Quoted(got, kQuotedMax)));
}

// Checks that the length that the response announces is that of its body.
absl::Status CheckLength(const http::Response& response) {
  const absl::string_view announced = response.Find("content-length");
  if (announced.empty() || ParseCount(announced) == response.body.size()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "the body has another length than announced: want=", Quoted(announced, kQuotedMax),
      " got=", response.body.size()));
}

absl::StatusOr<std::string> TakePart(http::Response* response, const AskedRange& range) {
  const absl::string_view text = response->Find("content-range");
  const std::optional<ContentRange> got = ParseContentRange(text);
  if (!got) return WrongHeader("content-range", text);
  // The range may be shorter than asked only at the end of the object.
  std::uint64_t last = LastByte(range);
  if (got->size) last = std::min(last, *got->size - 1);
  if (got->first != range.offset || got->last != last) {
    return absl::DataLossError(absl::StrCat("another range than asked: want=", range.offset, "-",
                                            last, " content-range=", Quoted(text, kQuotedMax)));
  }
  if (response->body.size() != last - range.offset + 1) {
    return absl::DataLossError(
        absl::StrCat("the body has another length than its range: want=", last - range.offset + 1,
                     " got=", response->body.size()));
  }
  if (range.offset == 0 && got->size && last + 1 == *got->size)
    EG_RETURN_IF_ERROR(CheckWhole(*response));
  return std::move(response->body);
}

}  // namespace

bool IsEtag(absl::string_view text) {
  return !text.empty() && text.size() <= kEtagBytesMax &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
}

absl::StatusOr<ObjectInfo> ReadObjectInfo(const http::Response& response, fs::StoreKind kind) {
  ObjectInfo info;
  absl::string_view length = response.Find("content-length");
  if (length.empty()) length = response.Find("x-goog-stored-content-length");
  const std::optional<std::uint64_t> bytes = ParseCount(length);
  if (!bytes) return WrongHeader("content-length", length);
  info.bytes = *bytes;
  const absl::string_view etag = response.Find("etag");
  if (!IsEtag(etag)) return WrongHeader("etag", etag);
  info.etag = std::string(etag);
  const absl::string_view mark = response.Find(DialectOf(kind).mark_header);
  if (IsMark(mark)) info.writer_mark = std::string(mark);
  return info;
}

std::uint64_t LastByte(const AskedRange& range) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  if (range.offset > kMax || range.bytes - 1 > kMax - range.offset) return kMax;
  return range.offset + range.bytes - 1;
}

absl::StatusOr<std::string> TakeRange(http::Response* response, const AskedRange& range) {
  EG_RETURN_IF_ERROR(CheckEtag(*response, range.etag));
  EG_RETURN_IF_ERROR(CheckLength(*response));
  if (response->status == 206) return TakePart(response, range);
  if (response->status != 200)
    return absl::DataLossError(absl::StrCat("an unexpected status: status=", response->status));
  EG_RETURN_IF_ERROR(CheckWhole(*response));
  std::string whole = std::move(response->body);
  if (range.offset >= whole.size()) return std::string();
  if (range.bytes < whole.size() - range.offset)
    whole.resize(static_cast<std::size_t>(range.offset + range.bytes));
  if (range.offset > 0) whole.erase(0, static_cast<std::size_t>(range.offset));
  return whole;
}

absl::Status CheckBeyondEnd(const http::Response& response, const AskedRange& range) {
  absl::string_view text = response.Find("content-range");
  if (text.empty()) return absl::OkStatus();
  const absl::string_view whole = text;
  if (!absl::ConsumePrefix(&text, "bytes */")) return WrongHeader("content-range", whole);
  const std::optional<std::uint64_t> size = ParseCount(text);
  if (!size) return WrongHeader("content-range", whole);
  if (range.offset >= *size) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "the store refuses a range inside the object: offset=", range.offset, " size=", *size));
}

std::string GoogleHash(absl::string_view body) { return absl::StrCat("crc32c=", CrcText(body)); }

}  // namespace evergrad::object_store

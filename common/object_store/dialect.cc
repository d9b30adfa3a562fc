#include "common/object_store/dialect.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/object_store/signature.h"

namespace evergrad::object_store {
namespace {

constexpr absl::string_view kTemporaryInfix = ".evergrad-part-", kProbePrefix = ".evergrad-probe-";
constexpr std::size_t kMarkDigits = 32;

constexpr Dialect kS3Dialect{
    "x-amz-meta-evergrad-writer", "if-none-match", "*", "If-None-Match", true, false};
constexpr Dialect kGcsDialect{"x-goog-meta-evergrad-writer",
                              "x-goog-if-generation-match",
                              "0",
                              "x-goog-if-generation-match",
                              false,
                              true};

// Returns the position after the last '/' of a key.
std::size_t NameBegin(absl::string_view key) {
  const std::size_t slash = key.rfind('/');
  return slash == absl::string_view::npos ? 0 : slash + 1;
}

}  // namespace

const Dialect& DialectOf(fs::StoreKind kind) {
  return kind == fs::StoreKind::kS3 ? kS3Dialect : kGcsDialect;
}

BucketAddress::BucketAddress(fs::StoreKind kind, Endpoint endpoint, std::string bucket)
    : kind_(kind), bucket_(std::move(bucket)), bucket_in_path_(endpoint.bucket_in_path) {
  absl::string_view url = endpoint.url;
  const bool is_plain = absl::ConsumePrefix(&url, "http://");
  if (!is_plain) absl::ConsumePrefix(&url, "https://");
  // A client sends no default port in the header Host, and the signature must agree with it.
  absl::ConsumeSuffix(&url, is_plain ? ":80" : ":443");
  scheme_ = is_plain ? "http://" : "https://";
  host_ = bucket_in_path_ ? std::string(url) : absl::StrCat(bucket_, ".", url);
}

std::string BucketAddress::PathOf(absl::string_view key) const {
  if (!bucket_in_path_) return absl::StrCat("/", key);
  return key.empty() ? absl::StrCat("/", bucket_) : absl::StrCat("/", bucket_, "/", key);
}

std::string BucketAddress::UrlOf(absl::string_view key, const Query& query) const {
  return absl::StrCat(scheme_, host_, PercentEncode(PathOf(key), true), query.empty() ? "" : "?",
                      EncodeQuery(query));
}

std::string BucketAddress::UriOf(absl::string_view key) const {
  return fs::ToString({kind_, bucket_, std::string(key)});
}

std::string BucketAddress::CopySourceOf(absl::string_view key) const {
  return absl::StrCat(bucket_, "/", PercentEncode(key, true));
}

bool IsMark(absl::string_view text) {
  return text.size() == kMarkDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string MarkOf(std::uint64_t high, std::uint64_t low) {
  return absl::StrFormat("%016x%016x", high, low);
}

std::string TemporaryKey(absl::string_view key, absl::string_view mark) {
  return absl::StrCat(key, kTemporaryInfix, mark);
}

std::string ProbeKey(absl::string_view key, absl::string_view mark) {
  return absl::StrCat(key.substr(0, NameBegin(key)), kProbePrefix, mark);
}

bool IsInternalKey(absl::string_view key) {
  absl::string_view name = key.substr(NameBegin(key));
  if (name.size() <= kMarkDigits || !IsMark(name.substr(name.size() - kMarkDigits))) return false;
  name.remove_suffix(kMarkDigits);
  return name == kProbePrefix || absl::EndsWith(name, kTemporaryInfix);
}

}  // namespace evergrad::object_store

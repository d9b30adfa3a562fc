#include "common/fs/object_uri.h"

#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/escape.h"
#include "common/base/utf8.h"
#include "common/fs/file.h"

namespace evergrad::fs {
namespace {

constexpr std::size_t kBucketBytesMin = 3, kBucketBytesMax = 63;
constexpr std::size_t kKeyBytesMax = 1024;
constexpr std::size_t kQuotedMax = 200;  // characters of a URI in a message

struct Scheme {
  absl::string_view text;
  StoreKind kind;
};
constexpr Scheme kSchemes[] = {{"s3://", StoreKind::kS3}, {"gs://", StoreKind::kGcs}};

const Scheme* SchemeOf(absl::string_view uri) {
  for (const Scheme& scheme : kSchemes)
    if (absl::StartsWith(uri, scheme.text)) return &scheme;
  return nullptr;
}

bool IsLetterOrDigit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

// Returns the mistake in a bucket's name, or "".
absl::string_view BucketMistake(absl::string_view bucket, StoreKind kind) {
  if (bucket.size() < kBucketBytesMin || bucket.size() > kBucketBytesMax)
    return "the name of a bucket has 3 to 63 characters";
  for (const char c : bucket) {
    if (IsLetterOrDigit(c) || c == '.' || c == '-' || (c == '_' && kind == StoreKind::kGcs))
      continue;
    return kind == StoreKind::kGcs ? "the name of a bucket has only the characters a-z 0-9 . - _"
                                   : "the name of a bucket has only the characters a-z 0-9 . -";
  }
  if (!IsLetterOrDigit(bucket.front()) || !IsLetterOrDigit(bucket.back()))
    return "the name of a bucket begins and ends with a letter or a digit";
  if (absl::StrContains(bucket, "..")) return "the name of a bucket has no adjacent dots";
  return "";
}

// Returns the mistake in a key, or "".
absl::string_view KeyMistake(absl::string_view key) {
  if (key.size() > kKeyBytesMax) return "a key has at most 1,024 bytes";
  for (absl::string_view left = key; !left.empty();) {
    const Utf8Character character = FirstCharacter(left);
    if (character.bytes == 0) return "a key is UTF-8 text";
    if (character.code < 0x20 || (character.code >= 0x7f && character.code < 0xa0))
      return "a key has no control characters";
    left.remove_prefix(character.bytes);
  }
  if (key.empty()) return "";
  for (const absl::string_view segment : absl::StrSplit(key, '/')) {
    if (segment.empty()) return "a key has a name between two slashes";
    if (segment == "." || segment == "..") return "a key has no names `.` and `..`";
  }
  return "";
}

}  // namespace

bool IsObjectUri(absl::string_view uri) { return SchemeOf(uri) != nullptr; }

absl::StatusOr<ObjectUri> ParseObjectUri(absl::string_view uri) {
  const auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("bad URI of an object: ", why, ": uri=", Quoted(uri, kQuotedMax)));
  };
  const Scheme* scheme = SchemeOf(uri);
  if (scheme == nullptr) return bad("expected s3://BUCKET/KEY or gs://BUCKET/KEY");
  const absl::string_view rest = uri.substr(scheme->text.size());
  const std::size_t slash = rest.find('/');
  const absl::string_view bucket = rest.substr(0, slash);
  absl::string_view key = slash == absl::string_view::npos ? "" : rest.substr(slash + 1);
  while (!key.empty() && key.back() == '/') key.remove_suffix(1);
  if (const auto mistake = BucketMistake(bucket, scheme->kind); !mistake.empty())
    return bad(mistake);
  if (const auto mistake = KeyMistake(key); !mistake.empty()) return bad(mistake);
  return ObjectUri{scheme->kind, std::string(bucket), std::string(key)};
}

std::string ToString(const ObjectUri& uri) {
  const absl::string_view scheme = uri.kind == StoreKind::kS3 ? "s3://" : "gs://";
  return absl::StrCat(scheme, uri.bucket, uri.key.empty() ? "" : "/", uri.key);
}

absl::Status CheckUri(absl::string_view uri) {
  if (IsObjectUri(uri)) return ParseObjectUri(uri).status();
  const std::size_t colon = uri.find("://");
  if (colon != absl::string_view::npos && uri.substr(0, colon) != "file") {
    return absl::UnimplementedError(
        absl::StrCat("unsupported URI scheme: scheme=", Quoted(uri.substr(0, colon), kQuotedMax),
                     " uri=", Quoted(uri, kQuotedMax), " supported=file,s3,gs"));
  }
  return LocalPath(uri).status();
}

}  // namespace evergrad::fs

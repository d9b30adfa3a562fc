// The differences between S3 and the XML API of Google Cloud Storage, and the addresses of objects.
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/fs/object_uri.h"
#include "common/http/client.h"
#include "common/object_store/endpoint.h"

namespace evergrad::object_store {

struct Dialect {
  absl::string_view mark_header;  // metadata with the mark of the writer
  // The header of a write that must not replace an object.
  absl::string_view absent_header, absent_value;
  absl::string_view absent_name;  // the header in messages
  // Whether a completion of an upload can have that condition. GCS has no conditions there, so an
  // upload is completed under a temporary key, and the object is copied with the condition.
  bool conditional_completion = false;
  // Whether a body needs a header with its checksum, because the signature does not cover it.
  bool hash_header = false;
};
const Dialect& DialectOf(fs::StoreKind kind);

using Query = std::vector<std::pair<std::string, std::string>>;

// The address of a bucket.
class BucketAddress {
 public:
  BucketAddress(fs::StoreKind kind, Endpoint endpoint, std::string bucket);
  // The host to which requests are sent, without a default port: "bucket.host" or "host:9000".
  const std::string& host() const { return host_; }
  // The path of an object, or of the bucket for "", not encoded: "/bucket/a key" or "/a key".
  std::string PathOf(absl::string_view key) const;
  // "https://host/bucket/a%20key?partNumber=1".
  std::string UrlOf(absl::string_view key, const Query& query) const;
  // "s3://bucket/a key".
  std::string UriOf(absl::string_view key) const;
  // "bucket/a%20key", the notation of x-goog-copy-source.
  std::string CopySourceOf(absl::string_view key) const;

 private:
  const fs::StoreKind kind_;
  const std::string bucket_;
  const bool bucket_in_path_;
  std::string scheme_, host_;
};

// A mark has 32 hexadecimal digits.
bool IsMark(absl::string_view text);
std::string MarkOf(std::uint64_t high, std::uint64_t low);

// The keys of objects that exist only during a call. They are beside `key`, and are never listed.
std::string TemporaryKey(absl::string_view key,
                         absl::string_view mark);                     // "KEY.evergrad-part-MARK"
std::string ProbeKey(absl::string_view key, absl::string_view mark);  // ".evergrad-probe-MARK"
// Returns whether `key` has the form of a key that one of these functions has made.
bool IsInternalKey(absl::string_view key);

}  // namespace evergrad::object_store

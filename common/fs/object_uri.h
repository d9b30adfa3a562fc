// URIs of objects in an object store: s3://BUCKET/KEY and gs://BUCKET/KEY. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace evergrad::fs {

enum class StoreKind { kS3, kGcs };

struct ObjectUri {
  StoreKind kind = StoreKind::kS3;
  std::string bucket;
  // The key without a leading '/'; a folder's key has no '/' at its end. "" for the bucket itself.
  std::string key;
  friend bool operator==(const ObjectUri&, const ObjectUri&) = default;
};

// Returns whether `uri` has the scheme of an object store. The rest of the URI may be wrong.
bool IsObjectUri(absl::string_view uri);
// Slashes at the end of the key are dropped. A key is plain text: '%', '?' and '#' are characters
// like any other. Returns InvalidArgument for another scheme, a bucket name that is not one of 3 to
// 63 characters [a-z0-9.-] (with '_' for gs) with a letter or digit at both ends and without "..",
// a key above 1,024 bytes or not of UTF-8, a key with a control character, and a key with an empty
// segment, "." or ".." (such keys could name objects outside of an allowed prefix).
absl::StatusOr<ObjectUri> ParseObjectUri(absl::string_view uri);
// Equal objects have equal texts.
std::string ToString(const ObjectUri& uri);

// Checks the URI of a folder or file that a user names: a local path, file:///…, s3://… or gs://….
// Returns Unimplemented with the name of the scheme for another scheme, and InvalidArgument for a
// file URI with a host and for the mistakes of ParseObjectUri.
absl::Status CheckUri(absl::string_view uri);

}  // namespace evergrad::fs

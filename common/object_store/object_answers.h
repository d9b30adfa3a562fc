// Reads the responses to HEAD and GET of one object: its size, range, entity tag and checksums.
// Pure.
//
// The headers come from outside. Errors are DataLoss, and name the header and its value;
// FailedPrecondition means that the response is of another object than the one that was opened.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/fs/object_uri.h"
#include "common/http/client.h"
#include "common/object_store/object_store.h"

namespace evergrad::object_store {

inline constexpr std::size_t kEtagBytesMax = 1'024;

// Returns whether `text` can be an entity tag: printable ASCII with its quotation marks, or
// without.
bool IsEtag(absl::string_view text);

// Reads the headers of a response to HEAD.
absl::StatusOr<ObjectInfo> ReadObjectInfo(const http::Response& response, fs::StoreKind kind);

struct AskedRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // at least 1
  std::string etag;         // "" for any object
};
// Returns the last byte of a range. It is at most 2^63 - 1, which some stores need.
std::uint64_t LastByte(const AskedRange& range);

// Returns the bytes of the range from a response with status 200 or 206, and takes the body out of
// the response. A response with status 200 has the whole object. The checksum of a whole object is
// compared if the response has one of the whole object (CRC-32C or SHA-256); a checksum of the
// checksums of parts ("…-3") is ignored.
absl::StatusOr<std::string> TakeRange(http::Response* response, const AskedRange& range);

// Checks a response with status 416 (the range begins beyond the end of the object).
absl::Status CheckBeyondEnd(const http::Response& response, const AskedRange& range);

// Returns the value of x-goog-hash for a body: "crc32c=n03x6A==".
std::string GoogleHash(absl::string_view body);

}  // namespace evergrad::object_store

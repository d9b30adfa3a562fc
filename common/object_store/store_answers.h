// Reads the XML documents of object stores, and writes the one document that is sent. Pure.
//
// The documents come from outside. A document has at most kAnswerBytesMax bytes and kTagsMax tags,
// no document type and no NUL byte. Errors are DataLoss and name the mistake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/http/client.h"
#include "common/object_store/object_store.h"
#include "common/object_store/store_errors.h"

namespace evergrad::object_store {

inline constexpr std::size_t kAnswerBytesMax = 4u << 20;
// A page of 1,000 objects has about 20,000 tags. The parser needs about 64 bytes for each.
inline constexpr std::size_t kTagsMax = 200'000;
inline constexpr std::size_t kKeyBytesMax = 1'024;
inline constexpr std::size_t kTokenBytesMax = 4'096, kUploadIdBytesMax = 2'048;

// Parses a number of 1 to 18 digits. Returns nullopt for any other text.
std::optional<std::uint64_t> ParseCount(absl::string_view text);

// Returns the error that a response describes in its body and headers. Values that are not in the
// response or not valid are "".
StoreError ReadError(const http::Response& response);

// Returns the error in a body whose root is <Error>, and nullopt for any other body. S3 can answer
// 200 to a completion, and report an error in the body.
std::optional<StoreError> ErrorInBody(absl::string_view body);

// Reads a ListBucketResult (version 2). `prefix` and `token` are those of the request: keys that do
// not begin with the prefix, and a page that names itself as its successor, are not valid.
absl::StatusOr<ListPage> ReadListPage(absl::string_view body, absl::string_view prefix,
                                      absl::string_view token);

// Reads the id in an InitiateMultipartUploadResult. An id has printable ASCII characters other than
// the space.
absl::StatusOr<std::string> ReadUploadId(absl::string_view body);

// Checks that a body is a CompleteMultipartUploadResult.
absl::Status CheckCompletion(absl::string_view body);

// Returns the body of the request that completes an upload.
std::string CompletionBody(const std::vector<UploadedPart>& parts);

}  // namespace evergrad::object_store

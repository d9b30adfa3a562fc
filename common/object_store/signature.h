// Signatures of requests: AWS Signature Version 4 for S3, and its variant GOOG4-HMAC-SHA256 for
// Google Cloud Storage. Pure.
//
// Source: "Signature Version 4 for S3 (header-based)" in the Amazon S3 API reference, and "V4
// signing process" in the Cloud Storage documentation. libcurl 7.88 has a signer of its own. It
// signs a query as it is spelled, unsorted and without a '=' after "uploads", and sorts headers
// like x-amz-meta-1 and x-amz-meta-10 wrongly (DECISIONS; tests/golden/object_store has the
// comparison).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/fs/object_uri.h"
#include "common/http/client.h"
#include "common/http/percent_encoding.h"
#include "common/object_store/credentials.h"

namespace evergrad::object_store {

struct RequestToSign {
  std::string method;
  std::string host;  // as in the URL, with its port if it is not the default: "127.0.0.1:9000"
  std::string path;  // not encoded, with its leading '/': "/bucket/a key"
  // Names and values, not encoded; a name without a value has "".
  std::vector<std::pair<std::string, std::string>> query;
  // Headers that are sent, except host and the headers that Sign adds. All are signed. Headers with
  // one name are signed in the order in which they are sent.
  std::vector<http::Header> headers;
  absl::string_view body;
};

struct SigningScope {
  fs::StoreKind kind = fs::StoreKind::kS3;
  std::string region;          // "eu-central-1"; "auto" for GCS
  std::string service = "s3";  // "sts" for the token service; not used for GCS
  std::int64_t wall_ms = 0;    // time of the request
};

// Returns the headers to add to the request: x-amz-date, x-amz-content-sha256 (for s3 only),
// x-amz-security-token (with a session token) and authorization; for GCS, x-goog-date,
// x-goog-content-sha256 and authorization. For a bearer token, returns only authorization.
//
// The URL that is sent must have the path PercentEncode(path, true) and the query
// EncodeQuery(query). The path is neither normalised nor encoded twice, as S3 wants it; for other
// services it must be "/", for which all rules agree.
std::vector<http::Header> Sign(const RequestToSign& request, const SigningScope& scope,
                               const Credentials& credentials);

using http::PercentEncode;
// Returns the sorted, encoded query, which is both sent and signed: "list-type=2&prefix=a%2Fb",
// "uploads=".
std::string EncodeQuery(std::vector<std::pair<std::string, std::string>> query);

}  // namespace evergrad::object_store

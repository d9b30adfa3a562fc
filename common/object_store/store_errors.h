// The failures of requests to an object store, and the errors that callers see. Pure.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace evergrad::object_store {

// The parts of an error response. All texts come from outside, and each may be "".
struct StoreError {
  std::string code;        // "NoSuchKey": only letters, digits and . _ -
  std::string message;     // for people
  std::string request_id;  // the number under which the operator of the store finds the request
  std::string region;      // region of the bucket: only a-z, 0-9 and -
  std::string endpoint;    // host to which the store redirects
};

// The failure of one attempt of a request.
struct Failure {
  // The error if there is no response, or a response that is not valid; OK if the store answered
  // with an error.
  absl::Status cause;
  bool sent = true;     // false if no credentials were found, and so nothing was sent
  int http_status = 0;  // 0 without a response
  StoreError error;
  std::optional<std::chrono::milliseconds> retry_after;  // the store's wish
};

// The facts about a request that its error names.
struct RequestFacts {
  std::string uri;          // "s3://bucket/key"
  std::string store;        // host of the store
  std::string region;       // region of the signature
  std::string operation;    // "put"
  std::string credentials;  // origin of the credentials; "" if there were none
  int attempts = 0;
  std::chrono::milliseconds elapsed{0};  // since the first attempt
};

// Returns whether the response means that the bucket is in another region or at another endpoint.
bool IsOtherRegion(const Failure& failure, absl::string_view region);

// Returns the error for the caller of an ObjectStore. object_store.h lists its kinds.
absl::Status ToStatus(const Failure& failure, const RequestFacts& facts);

}  // namespace evergrad::object_store

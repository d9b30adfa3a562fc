// Sends requests for one bucket: signs them, repeats them (retry.h), counts them, and turns a
// failure into the error for the caller. Thread-safe; calls block.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/http/client.h"
#include "common/object_store/dialect.h"
#include "common/object_store/http_object_store.h"
#include "common/object_store/store_answers.h"
#include "common/object_store/store_errors.h"
#include "common/object_store/store_metrics.h"

namespace evergrad::object_store {

struct StoreRequest {
  Operation operation = Operation::kHead;
  std::string method;
  std::string key;  // "" for the bucket
  Query query;
  std::vector<http::Header> headers;
  // Headers that are sent and not signed, because a proxy may change them.
  std::vector<http::Header> unsigned_headers;
  absl::string_view body;  // outlives the call
  std::size_t response_bytes_max = kAnswerBytesMax;
  // Checks a response whose status is 2xx, and may take its body; may be null. After DataLoss the
  // request is repeated, and any other error is final.
  std::function<absl::Status(http::Response*)> check;
};

struct StoreAnswer {
  absl::Status status;      // OK after a response with status 2xx that `check` accepted
  http::Response response;  // the last one; its status is 0 if there was none
  std::string code;         // the store's code of the error, or ""
  // Whether an earlier attempt may have been carried out although it failed.
  bool may_be_done_before = false;
};

class RequestSender {
 public:
  RequestSender(BucketAddress address, StoreParts parts);
  StoreAnswer Send(const StoreRequest& request);
  const BucketAddress& address() const { return address_; }
  // Returns 64 random bits, which depend on StoreParts::seed if it is set.
  std::uint64_t RandomBits();

 private:
  // The results of one attempt.
  struct Attempt {
    std::optional<Failure> failure;
    http::Response response;
    Credentials credentials;  // those that signed the request
  };
  Attempt Try(const StoreRequest& request);
  // Sends the request, signed with attempt->credentials.
  void Exchange(const StoreRequest& request, Attempt* attempt);
  // Returns the failure that a response describes, or nullopt.
  std::optional<Failure> FailureOf(const StoreRequest& request, Attempt* attempt) const;
  http::Request SignedRequest(const StoreRequest& request, const Credentials& credentials) const;
  absl::Status StatusOf(const StoreRequest& request, const Attempt& attempt, int attempts,
                        std::chrono::milliseconds elapsed) const;

  const BucketAddress address_;
  const StoreParts parts_;
  http::Interruption uninterrupted_;  // is used if StoreParts has none
  http::Interruption* const interruption_;
  const StoreMetrics metrics_;
  std::atomic<std::uint64_t> drawn_{0};  // numbers drawn from the seed so far
};

}  // namespace evergrad::object_store

// An object store in memory, as an HTTP client. It plays S3 or the XML API of Google Cloud Storage.
//
// The store is strict: it checks the URL, computes the signature again from what it received, and
// refuses headers and query parameters that the real service would not expect with the operation.
// Faults can be injected at single requests. Thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/fs/object_uri.h"
#include "common/http/client.h"
#include "common/object_store/credentials.h"
#include "common/object_store/endpoint.h"
#include "tests/support/fake_http/fake_http_client.h"
#include "tests/support/fake_store/fake_bucket.h"

namespace evergrad::test {

enum class Fault {
  kNone,
  kNotConnected,       // the client reports no connection; the store does nothing
  kAnswerLost,         // the store carries the request out, and the connection ends
  kInternalError,      // 500; the store does nothing
  kErrorAfterSuccess,  // 500, although the store carries the request out
  kSlowDown,           // 503 SlowDown with Retry-After: 2; the store does nothing
  kConflict,           // 409 ConditionalRequestConflict to a write; the store does nothing
  kExpiredToken,       // 400 ExpiredToken; the store does nothing
  kErrorInBody,        // 200 with <Error> in the body; the store does nothing
  kUnreadableBody,     // the store carries the request out, and sends another body
  kShortBody,          // the last byte of the body is missing
  kDamagedBody,        // the first byte of the body is another
  kWrongRange,         // Content-Range begins one byte later
  kWrongLength,        // Content-Length is one byte more
};
inline constexpr Fault kAllFaults[] = {
    Fault::kNotConnected,   Fault::kAnswerLost, Fault::kInternalError, Fault::kErrorAfterSuccess,
    Fault::kSlowDown,       Fault::kConflict,   Fault::kExpiredToken,  Fault::kErrorInBody,
    Fault::kUnreadableBody, Fault::kShortBody,  Fault::kDamagedBody,   Fault::kWrongRange,
    Fault::kWrongLength};

class FakeStore final : public http::Client {
 public:
  struct Options {
    fs::StoreKind kind = fs::StoreKind::kS3;
    object_store::Endpoint endpoint{"https://store.example", "region-1", true};
    std::string bucket = "bucket";
    object_store::Credentials credentials;
    std::size_t part_bytes_min = 4;
    std::size_t page_entries_max = 1'000;
    bool honours_conditions = true;
    bool honours_ranges = true;
    bool knows_checksum_mode = true;  // or 501 for a request with this header
  };
  using Object = FakeObject;

  explicit FakeStore(Options options);

  absl::StatusOr<http::Response> Send(const http::Request& request) override;

  // Injects a fault at the request with this number. The first request has the number 0.
  void FailRequest(std::size_t number, Fault fault);
  // Injects a fault at the next `times` requests that `matches` accepts.
  using Matches = std::function<bool(const SentRequest&)>;
  void FailIf(Matches matches, Fault fault, int times = 1'000'000);
  void ClearFaults();
  // Is called before each request is carried out, with its number and without a lock.
  void SetHook(std::function<void(std::size_t)> hook);
  void SetCredentials(object_store::Credentials credentials);

  // Changes the objects without a request.
  void PutObject(const std::string& key, Object object);
  void RemoveObject(const std::string& key);
  std::map<std::string, Object> objects() const;
  std::size_t uploads() const;  // uploads that were begun and have not ended

  std::vector<SentRequest> sent() const;
  // Returns one line for each request: method, path, query, the headers other than those of the
  // signature, the length of the body, and the status of the answer. The marks of writers are
  // replaced by M1, M2, … in the order in which they appear.
  std::vector<std::string> Transcript() const;

 private:
  struct Rule {
    Matches matches;
    Fault fault = Fault::kNone;
    int times = 0;
  };
  Fault TakeFaultLocked(std::size_t number, const SentRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  http::Response AnswerLocked(const SentRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool ReadUrl(const SentRequest& request, StoreCall* call) const;
  // Returns an error response, or one with status 0 if the request is in order.
  http::Response CheckSignatureLocked(const StoreCall& call) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  http::Response CheckHeadersLocked(const StoreCall& call) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsGcs() const { return options_.kind == fs::StoreKind::kGcs; }

  const Options options_;
  mutable Mutex mu_;
  object_store::Credentials credentials_ ABSL_GUARDED_BY(mu_) = options_.credentials;
  std::function<void(std::size_t)> hook_ ABSL_GUARDED_BY(mu_);
  std::map<std::size_t, Fault> faults_ ABSL_GUARDED_BY(mu_);
  std::vector<Rule> rules_ ABSL_GUARDED_BY(mu_);
  FakeBucket bucket_ ABSL_GUARDED_BY(mu_);
  std::vector<SentRequest> sent_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> results_ ABSL_GUARDED_BY(mu_);  // of sent_: "200", "lost"
};

}  // namespace evergrad::test

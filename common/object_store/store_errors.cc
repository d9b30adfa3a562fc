#include "common/object_store/store_errors.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/escape.h"

namespace evergrad::object_store {
namespace {

constexpr std::size_t kMessageCharactersMax = 300, kIdCharactersMax = 128;

struct Words {
  absl::StatusCode kind;
  std::string text;
};

struct CodeWords {
  absl::string_view code;
  absl::StatusCode kind;
  absl::string_view text;
};

// Codes whose meaning differs from that of their HTTP status.
constexpr std::array<CodeWords, 17> kCodes{{
    {"NoSuchBucket", absl::StatusCode::kFailedPrecondition, "the bucket does not exist"},
    {"NoSuchUpload", absl::StatusCode::kFailedPrecondition,
     "the upload does not exist; it was completed or deleted"},
    {"ExpiredToken", absl::StatusCode::kUnauthenticated, "the credentials have expired"},
    {"InvalidToken", absl::StatusCode::kUnauthenticated, "the store refuses the session token"},
    {"TokenRefreshRequired", absl::StatusCode::kUnauthenticated, "the credentials have expired"},
    {"InvalidAccessKeyId", absl::StatusCode::kUnauthenticated,
     "the store does not know the access key"},
    {"SignatureDoesNotMatch", absl::StatusCode::kUnauthenticated,
     "the store refuses the signature; check the secret access key"},
    {"AuthorizationHeaderMalformed", absl::StatusCode::kUnauthenticated,
     "the store refuses the signature; check the region"},
    {"RequestTimeTooSkewed", absl::StatusCode::kUnauthenticated,
     "the clock of this machine differs too much from the clock of the store"},
    {"SlowDown", absl::StatusCode::kUnavailable, "the store asks for fewer requests"},
    {"InternalError", absl::StatusCode::kUnavailable, "the store keeps failing"},
    {"ServiceUnavailable", absl::StatusCode::kUnavailable, "the store keeps failing"},
    {"RequestTimeout", absl::StatusCode::kUnavailable, "the store did not receive the whole body"},
    {"OperationAborted", absl::StatusCode::kUnavailable,
     "another request for the same object keeps interfering"},
    {"ConditionalRequestConflict", absl::StatusCode::kUnavailable,
     "another request for the same object keeps interfering"},
    {"XMinioStorageFull", absl::StatusCode::kResourceExhausted, "the store is out of space"},
    {"QuotaExceeded", absl::StatusCode::kResourceExhausted, "the store is out of space"},
}};

Words WordsOfHttpStatus(int status) {
  switch (status) {
    case 401: return {absl::StatusCode::kUnauthenticated, "the store refuses the credentials"};
    case 403: return {absl::StatusCode::kPermissionDenied, "the store denies access"};
    case 404: return {absl::StatusCode::kNotFound, "there is no such object"};
    case 408: return {absl::StatusCode::kUnavailable, "the store did not receive the whole body"};
    case 412:
      return {absl::StatusCode::kFailedPrecondition, "the object has changed since it was opened"};
    case 429: return {absl::StatusCode::kUnavailable, "the store asks for fewer requests"};
    case 501: return {absl::StatusCode::kUnimplemented, "the store does not support the request"};
    case 507: return {absl::StatusCode::kResourceExhausted, "the store is out of space"};
    default: break;
  }
  if (status >= 500) return {absl::StatusCode::kUnavailable, "the store keeps failing"};
  return {absl::StatusCode::kInvalidArgument, "the store refuses the request"};
}

// Returns the words for an attempt without a valid response.
Words WordsOfCause(const Failure& failure) {
  switch (failure.cause.code()) {
    case absl::StatusCode::kUnavailable:
      return {absl::StatusCode::kUnavailable,
              failure.sent ? "cannot reach the store" : "cannot get credentials for the store"};
    case absl::StatusCode::kUnauthenticated:
      return {absl::StatusCode::kUnauthenticated, failure.sent
                                                      ? "the certificate of the store is not valid"
                                                      : "cannot get credentials for the store"};
    case absl::StatusCode::kCancelled:
      return {absl::StatusCode::kCancelled, "the request to the store was cancelled"};
    case absl::StatusCode::kResourceExhausted:
      return {absl::StatusCode::kDataLoss, "the response of the store is too long"};
    case absl::StatusCode::kDataLoss:
      return {absl::StatusCode::kDataLoss, "the response of the store is not valid"};
    case absl::StatusCode::kFailedPrecondition:
      return {absl::StatusCode::kFailedPrecondition, "the object has changed since it was opened"};
    default: return {absl::StatusCode::kInvalidArgument, "cannot send the request to the store"};
  }
}

Words WordsOf(const Failure& failure, const RequestFacts& facts) {
  if (!failure.cause.ok()) return WordsOfCause(failure);
  const StoreError& error = failure.error;
  if (IsOtherRegion(failure, facts.region)) {
    if (!error.region.empty() && error.region != facts.region) {
      return {absl::StatusCode::kFailedPrecondition,
              absl::StrCat("the bucket is in region ", error.region,
                           ": start the daemon with --s3-region ", error.region)};
    }
    return {absl::StatusCode::kFailedPrecondition,
            "the bucket is at another endpoint: start the daemon with its endpoint"};
  }
  const auto* found = std::find_if(kCodes.begin(), kCodes.end(), [&](const CodeWords& words) {
    return words.code == error.code;
  });
  if (found != kCodes.end()) return {found->kind, std::string(found->text)};
  return WordsOfHttpStatus(failure.http_status);
}

// Appends " name=value" unless the value is empty.
void AppendValue(absl::string_view name, absl::string_view value, std::string* text) {
  if (!value.empty()) absl::StrAppend(text, " ", name, "=", Quoted(value, kIdCharactersMax));
}

}  // namespace

bool IsOtherRegion(const Failure& failure, absl::string_view region) {
  const StoreError& error = failure.error;
  const bool names_other = !error.region.empty() && error.region != region;
  switch (failure.http_status) {
    case 301:
    case 302:
    case 307:
    case 308: return true;
    // S3 answers so to a signature for another region. A response to HEAD has no code.
    case 400:
      return names_other && (error.code.empty() || error.code == "AuthorizationHeaderMalformed");
    default: return false;
  }
}

absl::Status ToStatus(const Failure& failure, const RequestFacts& facts) {
  const Words words = WordsOf(failure, facts);
  std::string text = absl::StrCat(words.text, ": uri=", Escaped(facts.uri));
  AppendValue("store", facts.store, &text);
  AppendValue("operation", facts.operation, &text);
  if (failure.http_status != 0) absl::StrAppend(&text, " status=", failure.http_status);
  AppendValue("code", failure.error.code, &text);
  AppendValue("request", failure.error.request_id, &text);
  AppendValue("endpoint", failure.error.endpoint, &text);
  AppendValue("credentials", facts.credentials, &text);
  absl::StrAppendFormat(&text, " attempts=%d seconds=%.1f", facts.attempts,
                        static_cast<double>(facts.elapsed.count()) / 1000);
  const std::string& reason =
      failure.cause.ok() ? failure.error.message : std::string(failure.cause.message());
  if (!reason.empty()) {
    absl::StrAppend(&text, failure.cause.ok() ? " message=" : " reason=",
                    Quoted(reason, kMessageCharactersMax));
  }
  return absl::Status(words.kind, text);
}

}  // namespace evergrad::object_store

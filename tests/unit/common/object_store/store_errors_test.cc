#include "common/object_store/store_errors.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace evergrad::object_store {
namespace {

RequestFacts SomeFacts() {
  RequestFacts facts;
  facts.uri = "s3://bucket/a key";
  facts.store = "store.example";
  facts.region = "us-east-1";
  facts.operation = "put";
  facts.credentials = "environment";
  facts.attempts = 3;
  facts.elapsed = std::chrono::milliseconds(1'250);
  return facts;
}

TEST_CASE("an error has a kind by the code and the status of the store") {
  struct Case {
    int http_status;
    std::string code;
    absl::StatusCode kind;
    bool is_retryable;
    std::string words;
  };
  using absl::StatusCode;
  const std::vector<Case> cases = {
      {404, "NoSuchKey", StatusCode::kNotFound, false, "there is no such object"},
      {404, "", StatusCode::kNotFound, false, "there is no such object"},
      {404, "NoSuchBucket", StatusCode::kFailedPrecondition, false, "the bucket does not exist"},
      {404, "NoSuchUpload", StatusCode::kFailedPrecondition, false, "the upload does not exist"},
      {403, "AccessDenied", StatusCode::kPermissionDenied, false, "the store denies access"},
      {403, "", StatusCode::kPermissionDenied, false, "the store denies access"},
      {401, "", StatusCode::kUnauthenticated, false, "the store refuses the credentials"},
      {400, "ExpiredToken", StatusCode::kUnauthenticated, false, "the credentials have expired"},
      {403, "InvalidAccessKeyId", StatusCode::kUnauthenticated, false, "does not know the access"},
      {403, "SignatureDoesNotMatch", StatusCode::kUnauthenticated, false, "check the secret"},
      {403, "RequestTimeTooSkewed", StatusCode::kUnauthenticated, false, "the clock of this"},
      {412, "PreconditionFailed", StatusCode::kFailedPrecondition, false, "has changed"},
      {409, "ConditionalRequestConflict", StatusCode::kUnavailable, true, "interfering"},
      {409, "OperationAborted", StatusCode::kUnavailable, true, "interfering"},
      {409, "BucketAlreadyExists", StatusCode::kInvalidArgument, false, "refuses the request"},
      {429, "", StatusCode::kUnavailable, true, "fewer requests"},
      {503, "SlowDown", StatusCode::kUnavailable, true, "fewer requests"},
      {500, "InternalError", StatusCode::kUnavailable, true, "keeps failing"},
      {200, "InternalError", StatusCode::kUnavailable, true, "keeps failing"},
      {502, "", StatusCode::kUnavailable, true, "keeps failing"},
      {504, "", StatusCode::kUnavailable, true, "keeps failing"},
      {520, "", StatusCode::kUnavailable, true, "keeps failing"},
      {408, "", StatusCode::kUnavailable, true, "did not receive the whole body"},
      {501, "NotImplemented", StatusCode::kUnimplemented, false, "does not support"},
      {507, "XMinioStorageFull", StatusCode::kResourceExhausted, true, "out of space"},
      {400, "EntityTooSmall", StatusCode::kInvalidArgument, false, "refuses the request"},
      {405, "MethodNotAllowed", StatusCode::kInvalidArgument, false, "refuses the request"},
  };
  for (const Case& one : cases) {
    CAPTURE(one.http_status, one.code);
    Failure failure;
    failure.http_status = one.http_status;
    failure.error.code = one.code;
    const absl::Status status = ToStatus(failure, SomeFacts());
    CHECK(status.code() == one.kind);
    CHECK(IsRetryable(status) == one.is_retryable);
    CHECK_THAT(std::string(status.message()), Catch::Contains(one.words));
  }
}

TEST_CASE("an error without a response has the kind of its cause") {
  struct Case {
    absl::StatusCode cause, kind;
    bool sent;
    std::string words;
  };
  using absl::StatusCode;
  const std::vector<Case> cases = {
      {StatusCode::kUnavailable, StatusCode::kUnavailable, true, "cannot reach the store"},
      {StatusCode::kUnavailable, StatusCode::kUnavailable, false, "cannot get credentials"},
      {StatusCode::kUnauthenticated, StatusCode::kUnauthenticated, true, "certificate"},
      {StatusCode::kUnauthenticated, StatusCode::kUnauthenticated, false, "cannot get credentials"},
      {StatusCode::kCancelled, StatusCode::kCancelled, true, "was cancelled"},
      {StatusCode::kResourceExhausted, StatusCode::kDataLoss, true, "too long"},
      {StatusCode::kDataLoss, StatusCode::kDataLoss, true, "not valid"},
      {StatusCode::kFailedPrecondition, StatusCode::kFailedPrecondition, true, "has changed"},
      {StatusCode::kInvalidArgument, StatusCode::kInvalidArgument, true, "cannot send"},
  };
  for (const Case& one : cases) {
    Failure failure;
    failure.cause = absl::Status(one.cause, "the reason");
    failure.sent = one.sent;
    const absl::Status status = ToStatus(failure, SomeFacts());
    CAPTURE(status.ToString());
    CHECK(status.code() == one.kind);
    CHECK_THAT(std::string(status.message()),
               Catch::StartsWith(one.words) || Catch::Contains(one.words));
    CHECK_THAT(std::string(status.message()), Catch::EndsWith("reason=the reason"));
  }
}

TEST_CASE("the message of an error names the object, the store and the request") {
  Failure failure;
  failure.http_status = 403;
  failure.error = {"AccessDenied", "User x may not\nput", "4442587FB7D0A2F9", "", ""};
  CHECK(std::string(ToStatus(failure, SomeFacts()).message()) ==
        "the store denies access: uri=s3://bucket/a key store=store.example operation=put "
        "status=403 code=AccessDenied request=4442587FB7D0A2F9 credentials=environment attempts=3 "
        "seconds=1.2 message=User x may not\\nput");
}

TEST_CASE("long texts of a store are shortened") {
  Failure failure;
  failure.http_status = 400;
  failure.error.message = std::string(100'000, 'm');
  failure.error.request_id = std::string(100'000, 'r');
  failure.error.endpoint = std::string(100'000, 'e');
  CHECK(ToStatus(failure, SomeFacts()).message().size() < 1'000);
}

TEST_CASE("a bucket in another region gives an error with the flag to set") {
  struct Case {
    int http_status;
    std::string code, region;
    bool is_other;
  };
  const std::vector<Case> cases = {
      {301, "PermanentRedirect", "eu-west-1", true},
      {301, "", "eu-west-1", true},
      {307, "TemporaryRedirect", "eu-west-1", true},
      {400, "AuthorizationHeaderMalformed", "eu-west-1", true},
      {400, "", "eu-west-1", true},
      {301, "PermanentRedirect", "", true},
      {301, "PermanentRedirect", "us-east-1", true},
      {400, "AuthorizationHeaderMalformed", "us-east-1", false},
      {400, "InvalidArgument", "eu-west-1", false},
      {403, "AccessDenied", "eu-west-1", false},
  };
  for (const Case& one : cases) {
    CAPTURE(one.http_status, one.code, one.region);
    Failure failure;
    failure.http_status = one.http_status;
    failure.error.code = one.code;
    failure.error.region = one.region;
    failure.error.endpoint = "bucket.s3.example";
    CHECK(IsOtherRegion(failure, "us-east-1") == one.is_other);
    const std::string message(ToStatus(failure, SomeFacts()).message());
    if (one.is_other && one.region == "eu-west-1") {
      CHECK_THAT(message, Catch::StartsWith("the bucket is in region eu-west-1: start the daemon "
                                            "with --s3-region eu-west-1: uri=s3://bucket/a key"));
    } else if (one.is_other) {
      CHECK_THAT(message, Catch::StartsWith("the bucket is at another endpoint"));
      CHECK_THAT(message, Catch::Contains(" endpoint=bucket.s3.example"));
    } else {
      CHECK_THAT(message, !Catch::Contains("--s3-region"));
    }
  }
}

}  // namespace
}  // namespace evergrad::object_store

#include "common/object_store/request_sender.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_replace.h"
#include "common/object_store/retry.h"
#include "common/object_store/signature.h"
#include "common/random/philox.h"

namespace evergrad::object_store {
namespace {

using std::chrono::milliseconds;

// A longer wait is shortened to RetryLimits::wait_max in any case.
constexpr std::uint64_t kRetryAfterSecondsMax = 86'400;

bool IsSuccess(int http_status) { return http_status >= 200 && http_status < 300; }

// Returns whether the store has answered the question, although not with a success: there is no
// such object, the condition does not hold, or the range is beyond the end.
bool IsAnswer(const Failure& failure) {
  if (!failure.cause.ok() || failure.error.code == "NoSuchBucket") return false;
  return failure.http_status == 404 || failure.http_status == 412 || failure.http_status == 416;
}

// Returns the error of a credential source with a code that cannot be taken for the store's: the
// source of a test may return any code.
absl::Status CredentialError(const absl::Status& status) {
  if (status.code() == absl::StatusCode::kUnavailable ||
      status.code() == absl::StatusCode::kCancelled)
    return status;
  return absl::UnauthenticatedError(status.message());
}

// Removes the secrets that a store or a proxy has repeated in its answer.
void RemoveSecrets(const Credentials& credentials, std::string* text) {
  for (const std::string* secret : {&credentials.secret_access_key, &credentials.session_token,
                                    &credentials.bearer_token, &credentials.access_key_id})
    if (!secret->empty()) absl::StrReplaceAll({{*secret, "[removed]"}}, text);
}

std::optional<milliseconds> RetryAfter(const http::Response& response) {
  const std::optional<std::uint64_t> seconds = ParseCount(response.Find("retry-after"));
  if (!seconds) return std::nullopt;
  return std::chrono::seconds(std::min(*seconds, kRetryAfterSecondsMax));
}

}  // namespace

RequestSender::RequestSender(BucketAddress address, StoreParts parts)
    : address_(std::move(address)),
      parts_(std::move(parts)),
      interruption_(parts_.interruption != nullptr ? parts_.interruption : &uninterrupted_),
      metrics_(parts_.registry) {}

std::uint64_t RequestSender::RandomBits() {
  if (parts_.seed == 0) return random::EntropyFromOs();
  return random::Bits64(random::KeyOf(parts_.seed, "object_store"), drawn_.fetch_add(1));
}

http::Request RequestSender::SignedRequest(const StoreRequest& request,
                                           const Credentials& credentials) const {
  RequestToSign to_sign;
  to_sign.method = request.method;
  to_sign.host = address_.host();
  to_sign.path = address_.PathOf(request.key);
  to_sign.query = request.query;
  to_sign.headers = request.headers;
  to_sign.body = request.body;
  SigningScope scope;
  scope.kind = parts_.kind;
  scope.region = parts_.endpoint.region;
  scope.service = parts_.kind == fs::StoreKind::kS3 ? "s3" : "storage";
  scope.wall_ms = parts_.clock->WallMillis();

  http::Request out;
  out.method = request.method;
  out.url = address_.UrlOf(request.key, request.query);
  out.headers = request.headers;
  for (http::Header& header : Sign(to_sign, scope, credentials))
    out.headers.push_back(std::move(header));
  for (const http::Header& header : request.unsigned_headers) out.headers.push_back(header);
  out.body = request.body;
  out.response_bytes_max = request.response_bytes_max;
  return out;
}

std::optional<Failure> RequestSender::FailureOf(const StoreRequest& request,
                                                Attempt* attempt) const {
  http::Response& response = attempt->response;
  Failure failure;
  failure.http_status = response.status;
  if (IsSuccess(response.status)) {
    std::optional<StoreError> error;
    // S3 may begin a response before it knows the result, and then reports the error in the body.
    if (request.operation != Operation::kGet) error = ErrorInBody(response.body);
    if (!error) {
      if (request.check != nullptr) failure.cause = request.check(&response);
      return failure.cause.ok() ? std::nullopt : std::optional(failure);
    }
    failure.error = *std::move(error);
  } else {
    failure.error = ReadError(response);
  }
  failure.retry_after = RetryAfter(response);
  for (std::string* text : {&failure.error.code, &failure.error.message, &failure.error.request_id,
                            &failure.error.region, &failure.error.endpoint})
    RemoveSecrets(attempt->credentials, text);
  return failure;
}

void RequestSender::Exchange(const StoreRequest& request, Attempt* attempt) {
  absl::StatusOr<http::Response> response =
      parts_.client->Send(SignedRequest(request, attempt->credentials));
  if (!response.ok()) {
    attempt->failure = Failure{.cause = response.status()};
    metrics_.CountBytes(request.body.size(), 0);
    return;
  }
  metrics_.CountBytes(request.body.size(), response->body.size());
  attempt->response = *std::move(response);
  attempt->failure = FailureOf(request, attempt);
}

RequestSender::Attempt RequestSender::Try(const StoreRequest& request) {
  Attempt attempt;
  absl::StatusOr<Credentials> credentials = parts_.credentials->Get();
  if (!credentials.ok()) {
    attempt.failure = Failure{.cause = CredentialError(credentials.status()), .sent = false};
    return attempt;
  }
  attempt.credentials = *std::move(credentials);
  Exchange(request, &attempt);
  return attempt;
}

absl::Status RequestSender::StatusOf(const StoreRequest& request, const Attempt& attempt,
                                     int attempts, milliseconds elapsed) const {
  RequestFacts facts;
  facts.uri = address_.UriOf(request.key);
  facts.store = address_.host();
  facts.region = parts_.endpoint.region;
  facts.operation = std::string(NameOf(request.operation));
  facts.credentials = attempt.credentials.origin;
  facts.attempts = attempts;
  facts.elapsed = elapsed;
  return ToStatus(*attempt.failure, facts);
}

StoreAnswer RequestSender::Send(const StoreRequest& request) {
  RetrySchedule schedule(parts_.retries, parts_.clock->Now(), RandomBits());
  bool may_be_done = false;
  for (;;) {
    const MonoTime begin = parts_.clock->Now();
    Attempt attempt = Try(request);
    const MonoTime now = parts_.clock->Now();
    const std::optional<Failure>& failure = attempt.failure;
    if (!failure) {
      metrics_.CountAttempt(request.operation, StoreMetrics::Result::kOk, now - begin);
      return {absl::OkStatus(), std::move(attempt.response), "", may_be_done};
    }
    const Reaction reaction = ReactionTo(*failure);
    if (reaction == Reaction::kRenewCredentials) parts_.credentials->Refused(attempt.credentials);
    const auto wait = schedule.NextWait(reaction, failure->retry_after, now);
    const bool is_answer = IsAnswer(*failure);
    metrics_.CountAttempt(request.operation,
                          wait        ? StoreMetrics::Result::kRetry
                          : is_answer ? StoreMetrics::Result::kOk
                                      : StoreMetrics::Result::kError,
                          now - begin);
    if (!wait) {
      return {StatusOf(request, attempt, schedule.failures(), schedule.Elapsed(now)),
              std::move(attempt.response), failure->error.code, may_be_done};
    }
    may_be_done = may_be_done || MayBeDone(*failure);
    if (!interruption_->Wait(*wait)) {
      attempt.failure->cause = absl::CancelledError("the process is ending");
      return {StatusOf(request, attempt, schedule.failures(), schedule.Elapsed(now)),
              std::move(attempt.response), "", may_be_done};
    }
  }
}

}  // namespace evergrad::object_store

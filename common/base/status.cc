#include "common/base/status.h"

#include "absl/strings/cord.h"

namespace evergrad {
namespace {
constexpr char kBlameUrl[] = "evergrad.dev/blame";
constexpr char kOriginUrl[] = "evergrad.dev/origin";
constexpr char kRetryableUrl[] = "evergrad.dev/retryable";
}  // namespace

absl::Status UserError(absl::Status status) {
  if (!status.ok()) status.SetPayload(kBlameUrl, absl::Cord("user"));
  return status;
}

Blame BlameOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kBlameUrl);
  return payload && *payload == "user" ? Blame::kUser : Blame::kMachine;
}

absl::Status WithOrigin(absl::Status status, absl::string_view origin) {
  if (!status.ok()) status.SetPayload(kOriginUrl, absl::Cord(origin));
  return status;
}

std::string OriginOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kOriginUrl);
  return payload ? std::string(*payload) : std::string();
}

absl::Status WithRetryable(absl::Status status, bool retryable) {
  if (!status.ok()) status.SetPayload(kRetryableUrl, absl::Cord(retryable ? "yes" : "no"));
  return status;
}

bool IsRetryable(const absl::Status& status) {
  if (BlameOf(status) == Blame::kUser) return false;
  if (const auto said = status.GetPayload(kRetryableUrl)) return *said == "yes";
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kResourceExhausted: return true;
    default: return false;
  }
}

}  // namespace evergrad

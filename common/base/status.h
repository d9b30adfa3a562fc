// absl::Status with what a caller needs to act on: whose error it is and whether to try again.
//
// The two kinds of ARCHITECTURE section 4.6 are told apart by type, never by text.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace evergrad {

// Whose making an error is. A user's error is final and ends the job; a machine's is retried with
// backoff and a limit.
enum class Blame { kMachine, kUser };

// Marks `status` as the user's making (bad file, shape, NaN under policy `fail`). Survives copies;
// OK stays OK.
absl::Status UserError(absl::Status status);
Blame BlameOf(const absl::Status& status);

// The task that an error came from ("worker/0#7"); "" when it is ours.
absl::Status WithOrigin(absl::Status status, absl::string_view origin);
std::string OriginOf(const absl::Status& status);

// What a peer said about its own error overrules what its code would mean here. OK stays OK.
absl::Status WithRetryable(absl::Status status, bool retryable);
// One place that decides: Unavailable, DeadlineExceeded, Aborted, ResourceExhausted of the
// machine's making are worth another try, unless WithRetryable said otherwise; a user's error never
// is.
bool IsRetryable(const absl::Status& status);

}  // namespace evergrad

// Returns the status of `expression` from the calling function unless it is OK.
#define EG_RETURN_IF_ERROR(expression)                                                 \
  do {                                                                                 \
    if (::absl::Status eg_status_ = (expression); !eg_status_.ok()) return eg_status_; \
  } while (false)
#define EG_CONCAT_INNER_(a, b) a##b
#define EG_CONCAT_(a, b) EG_CONCAT_INNER_(a, b)
#define EG_ASSIGN_OR_RETURN_INNER_(result, lhs, expression) \
  auto result = (expression);                               \
  if (!result.ok()) return result.status();                 \
  lhs = *std::move(result)
// EG_ASSIGN_OR_RETURN(auto x, F()): x = *F(), or returns its status.
#define EG_ASSIGN_OR_RETURN(lhs, expression) \
  EG_ASSIGN_OR_RETURN_INNER_(EG_CONCAT_(eg_statusor_, __LINE__), lhs, expression)

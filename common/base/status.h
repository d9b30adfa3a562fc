// Adds two properties to absl::Status that determine a caller's reaction: the party that caused the
// error, and whether a retry makes sense.
//
// The two kinds of errors of ARCHITECTURE section 4.6 are distinguished by type, never by message
// text.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace evergrad {

// The party that caused an error. A user error is final and ends the job; a machine error is
// retried with backoff and a limit.
enum class Blame { kMachine, kUser };

// Marks `status` as caused by the user, for example by a bad file or a wrong shape. The mark
// survives copies; an OK status stays OK.
absl::Status UserError(absl::Status status);
Blame BlameOf(const absl::Status& status);

// The origin is the task that reported an error ("worker/0#7"), or "" for an error of this process.
absl::Status WithOrigin(absl::Status status, absl::string_view origin);
std::string OriginOf(const absl::Status& status);

// The retryability that a peer states overrules the default of the status code. An OK status stays
// OK.
absl::Status WithRetryable(absl::Status status, bool retryable);
// Returns whether a retry makes sense. Unavailable, DeadlineExceeded, Aborted and ResourceExhausted
// are retryable unless WithRetryable or UserError has marked them.
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
// EG_ASSIGN_OR_RETURN(auto x, F()) assigns *F() to x, or returns the status of F() from the calling
// function.
#define EG_ASSIGN_OR_RETURN(lhs, expression) \
  EG_ASSIGN_OR_RETURN_INNER_(EG_CONCAT_(eg_statusor_, __LINE__), lhs, expression)

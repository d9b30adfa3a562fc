// Functions that make the cause of a job's end, as users see it and as the journal stores it.
#pragma once

#include "absl/status/status.h"
#include "common/client/protocol.h"

namespace evergrad::coordinator {

// Returns the ErrorDetail of client::ToErrorDetail, with `kind` (one word: "user", "poison",
// "limit", "internal") in place of the derived kind.
inline v1::ErrorDetail MakeError(const absl::Status& status, absl::string_view kind,
                                 absl::string_view origin) {
  v1::ErrorDetail error = client::ToErrorDetail(status, origin);
  error.set_kind(std::string(kind));
  return error;
}
// Limits the lengths of the texts of an error that a task reported, before the job keeps them.
inline void CleanCause(v1::ErrorDetail* cause) {
  cause->set_origin_text(client::CleanText(cause->origin_text(), 256));
  cause->set_kind(client::CleanText(cause->kind(), 64));
  cause->set_message(client::CleanText(cause->message(), 3500));
  cause->clear_origin();
}
// Returns one line for people: "worker/0: nan in loss".
inline std::string ErrorText(const v1::ErrorDetail& error) {
  return error.origin_text().empty() ? error.message()
                                     : error.origin_text() + ": " + error.message();
}

}  // namespace evergrad::coordinator

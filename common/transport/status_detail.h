// An absl::Status on the wire as one ErrorDetail of at most 4 KiB: code, message, origin, blame.
// Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace evergrad::transport {

std::string EncodeStatus(const absl::Status& status);
// Returns the status that `bytes` describe. Returns Internal for bytes that are not an ErrorDetail,
// and for an ErrorDetail with the code OK, because the call has failed in either case.
absl::Status DecodeStatus(absl::string_view bytes);

// Returns a copy of `status` that shares no state with it. A status that goes to another thread
// must be such a copy: its reference count is inside Debian's Abseil, which is not instrumented for
// ThreadSanitizer.
absl::Status OwnCopy(const absl::Status& status);

}  // namespace evergrad::transport

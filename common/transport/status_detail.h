// absl::Status over the wire as one ErrorDetail of at most 4 KiB: code, message, origin, blame.
// Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace evergrad::transport {

std::string EncodeStatus(const absl::Status& status);
// Bytes that are no ErrorDetail, or one that says OK, give Internal: the caller got an error either
// way.
absl::Status DecodeStatus(absl::string_view bytes);

// A copy that shares nothing. A status that goes to another thread is one: its reference count
// lives in Debian's Abseil, which ThreadSanitizer does not see into.
absl::Status OwnCopy(const absl::Status& status);

}  // namespace evergrad::transport

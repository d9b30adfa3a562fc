// Errors about a data file: it cannot be used on this host, or a record in it is damaged.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace evergrad::worker {

// "cannot <verb> data file: file=… error=…", a user's error. NotFound, PermissionDenied and
// Unavailable (the medium) say that another host, or a later time, may do better; InvalidArgument,
// that the path is no file that data can be in.
absl::Status FileError(absl::string_view verb, const std::string& path, int error);

// "bad record: PATH:LINE: TEXT", a user's error. Lines are counted from 1.
absl::Status BadRecord(const std::string& path, std::uint64_t line, absl::string_view text);

}  // namespace evergrad::worker

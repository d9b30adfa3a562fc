// Errors of data files: unusable on this host, or a damaged record.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace evergrad::worker {

// "cannot <verb> data file: file=… error=…", a user error. NotFound, PermissionDenied and
// Unavailable (the medium) mean that another host, or a later attempt, may succeed; InvalidArgument
// means that the path cannot be a data file.
absl::Status FileError(absl::string_view verb, const std::string& path, int error);

// "bad record: PATH:LINE: TEXT", a user error. Lines count from 1.
absl::Status BadRecord(const std::string& path, std::uint64_t line, absl::string_view text);

}  // namespace evergrad::worker

// Errors of data files: a file is unusable on this host, or a record is damaged.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace evergrad::worker {

// Returns the user error "cannot <verb> data file: file=… error=…". NotFound, PermissionDenied and
// Unavailable (a failure of the medium) mean that another host, or a later attempt, may succeed.
// InvalidArgument means that the path cannot be a data file.
absl::Status FileError(absl::string_view verb, const std::string& path, int error);

// Returns the user error "bad record: PATH:LINE: TEXT". Lines count from 1.
absl::Status BadRecord(const std::string& path, std::uint64_t line, absl::string_view text);

}  // namespace evergrad::worker

// Why a data file cannot be used on this host.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace evergrad::worker {

// "cannot <verb> data file: file=… error=…", a user's error. NotFound, PermissionDenied and
// Unavailable (the medium) say that another host, or a later time, may do better; InvalidArgument,
// that the path is no file that data can be in.
absl::Status FileError(absl::string_view verb, const std::string& path, int error);

}  // namespace evergrad::worker

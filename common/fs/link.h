// A second name for a file that is there.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace evergrad::fs {

// `to` becomes another name of the file `from`, in place of what had that name; not a copy.
// Unimplemented or FailedPrecondition where the file system has no such names; then `to` is as it
// was.
absl::Status LinkFile(const std::string& from, const std::string& to);

}  // namespace evergrad::fs

// Gives an existing file a second name.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace evergrad::fs {

// Makes `to` another name of the file `from` (not a copy), replacing the file that had the name.
// Unimplemented or FailedPrecondition if the file system has no hard links; then `to` is unchanged.
absl::Status LinkFile(const std::string& from, const std::string& to);

}  // namespace evergrad::fs

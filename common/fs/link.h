// Gives an existing file a second name.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace evergrad::fs {

// Makes `to` another name of the file `from` (not a copy), and replaces the file that had this
// name. Returns Unimplemented or FailedPrecondition if the file system has no hard links; `to` is
// then unchanged.
absl::Status LinkFile(const std::string& from, const std::string& to);

}  // namespace evergrad::fs

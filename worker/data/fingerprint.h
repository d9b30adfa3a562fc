// What tells the contents of two files apart. Copies of one file, on other hosts or under other
// names, are the same.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace evergrad::worker {

// "size=<bytes> sha256=<hex>", the hash over all of the file as stored. Above 256 MiB, where
// reading it once more would be felt: over its first and its last MiB, with
// "mtime=<seconds>.<nanoseconds>" for what lies between. `fd`: a regular file, whose position stays
// as it is; `path` names it in the user error when it cannot be read.
absl::StatusOr<std::string> FileFingerprint(int fd, const std::string& path);

}  // namespace evergrad::worker

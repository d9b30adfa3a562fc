// Identifies the contents of a file. Copies of one file, on other hosts or under other names, have
// the same fingerprint.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace evergrad::worker {

// "size=<bytes> sha256=<hex>", with the hash of the whole file as stored. For files above 256 MiB,
// which would take too long to read again, the hash covers the first and the last MiB, and
// "mtime=<seconds>.<nanoseconds>" stands for the rest. `fd` is a regular file, whose position does
// not change; `path` names it in the user error if it cannot be read.
absl::StatusOr<std::string> FileFingerprint(int fd, const std::string& path);

}  // namespace evergrad::worker

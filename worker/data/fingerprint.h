// Identifies the contents of a file. Copies of one file, on other hosts or under other names, have
// the same fingerprint.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace evergrad::worker {

// Returns "size=<bytes> sha256=<hex>", with the hash of the whole file as stored. Files above 256
// MiB would take too long to read again. The hash of such a file covers the first and the last MiB.
// The text then also has "mtime=<seconds>.<nanoseconds>", because a change of the other bytes also
// changes this time. The copy of an object has
// "version=<version>" in its place; `version` is "" for a local file. `fd` must be a regular file;
// the position of `fd` does not change. An error about a failed read names the file `path`.
absl::StatusOr<std::string> FileFingerprint(int fd, const std::string& path,
                                            const std::string& version);

}  // namespace evergrad::worker

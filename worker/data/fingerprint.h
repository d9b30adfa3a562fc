// What tells two files apart without reading all of either.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace evergrad::worker {

// "<path> size=<bytes> mtime=<seconds>.<nanoseconds> sha256=<hex>", the hash over the first MiB and the last MiB of the file as
// stored (of all of it, once, when it has at most 2 MiB). User error naming the file when it cannot be read.
absl::StatusOr<std::string> FileFingerprint(const std::string& path);

}  // namespace evergrad::worker

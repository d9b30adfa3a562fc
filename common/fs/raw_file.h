// System calls on descriptors and folders that take more than one line to use rightly. Errors are
// those of FileError.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/status.h"

namespace evergrad::fs {

// Writes all bytes, whatever pieces the kernel takes them in. `path` is for the error only.
absl::Status WriteAll(int fd, std::span<const std::byte> bytes, const std::string& path);

// Makes the names in a folder durable. A file system that cannot do that for folders is taken as it
// is.
absl::Status SyncFolder(const std::string& folder);

}  // namespace evergrad::fs

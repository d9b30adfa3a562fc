// System calls on descriptors and folders that need a loop or special error handling. Errors are
// those of FileError.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/status.h"

namespace evergrad::fs {

// Writes all bytes, in as many calls as the kernel needs. `path` is only for the error.
absl::Status WriteAll(int fd, std::span<const std::byte> bytes, const std::string& path);

// Makes the names in a folder durable. Also returns OK if the file system cannot sync folders.
absl::Status SyncFolder(const std::string& folder);

}  // namespace evergrad::fs

// File operations whose errors name the file. The functions take paths, with or without `file://`,
// and refuse other URI schemes by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace evergrad::fs {

// Returns the contents of a file. Errors such as NotFound and PermissionDenied name the path. The
// error is ResourceExhausted if the file is larger than `bytes_max`.
absl::StatusOr<std::string> ReadFile(const std::string& path, std::uint64_t bytes_max);
// Writes a temporary file in the folder of the target, syncs it, and renames it over the target.
// Readers see the old file or the new one.
absl::Status WriteFileAtomic(const std::string& path, absl::string_view contents);
// Appends `line` and a line end, completely or not at all. If the disk is out of space, the part
// that was written is removed. Only one process may write to the file.
absl::Status AppendLine(const std::string& path, absl::string_view line);
// Makes the appended bytes durable. The file's name is durable once its folder has been synced,
// which WriteFileAtomic in the same folder does.
absl::Status SyncFile(const std::string& path);
// Makes the file consist of its first `offset` bytes followed by `tail`. The file may already have
// a part of the tail (its writer may have been killed within a line); bytes after the tail are
// removed. Returns DataLoss if the file is shorter than `offset`; in this case the tail is appended
// to the end of the file. After any other error the file has only whole lines of the tail, and the
// call can be repeated.
absl::Status RestoreEnd(const std::string& path, std::uint64_t offset, absl::string_view tail);
// Creates a folder with all its parents; the new names are durable when it returns. An existing
// folder is OK.
absl::Status MakeDirectories(const std::string& path);
bool Exists(const std::string& path);
// Returns "/x" for "file:///x". For "s3://…", returns Unimplemented with the name of the scheme.
absl::StatusOr<std::string> LocalPath(absl::string_view uri);

}  // namespace evergrad::fs

// Files with errors that name them. Paths only (`file://` is stripped); other URI schemes are
// refused by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace evergrad::fs {

// NotFound, PermissionDenied, … each naming the path; ResourceExhausted above `bytes_max`.
absl::StatusOr<std::string> ReadFile(const std::string& path, std::uint64_t bytes_max);
// Writes beside the target, fsyncs, renames over it: readers see the old file or the new one.
absl::Status WriteFileAtomic(const std::string& path, absl::string_view contents);
// All of `line` and its end, or nothing: what was written of it is taken back when there is no room
// for the rest. For one writer.
absl::Status AppendLine(const std::string& path, absl::string_view line);
// What was appended is on the disk when it returns; the file's name is once its folder is synced
// (WriteFileAtomic beside it does that).
absl::Status SyncFile(const std::string& path);
// Makes the file its first `offset` bytes followed by `tail`, wherever in that tail it ended (a
// writer that was killed in mid-line); what is beyond goes. DataLoss, with the tail appended, when
// it is shorter than `offset`. Any other error leaves of the tail those whole lines that were
// there, and the same call again makes up for it.
absl::Status RestoreEnd(const std::string& path, std::uint64_t offset, absl::string_view tail);
// With all parents; the names of those that it makes are durable when it returns. A folder that is
// there is OK.
absl::Status MakeDirectories(const std::string& path);
bool Exists(const std::string& path);
absl::StatusOr<std::string> LocalPath(
    absl::string_view uri);  // "file:///x" -> "/x"; "s3://…" -> Unimplemented naming the scheme

}  // namespace evergrad::fs

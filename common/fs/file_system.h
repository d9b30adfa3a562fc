// Reads and writes files that are named by URIs. A file is written as a whole or not at all, and
// can be read at any offset. Snapshots and manifests are such files.
//
// The local file system (MakeLocalFileSystem) has files with the URIs `file:///x` and plain paths.
// The file system of an object store (common/object_store/object_files.h) has files with the URIs
// s3:// and gs://. common/object_store/file_systems.h joins the two. Each refuses other schemes by
// name (Unimplemented). A commit needs no rename of a folder, no append and no second write to an
// existing file, because object stores have none of these.
//
// All calls block, so only I/O threads may make them, never an executor. A FileSystem is
// thread-safe, and outlives its open files; an open file belongs to one thread. Errors name the
// path and a remedy. The kinds of errors are NotFound, AlreadyExists, PermissionDenied,
// ResourceExhausted (disk or quota full, too many open files), FailedPrecondition (a folder in
// place of a file, or the reverse), InvalidArgument (the URI), and DataLoss (the device reports an
// error). Object stores have further kinds (common/object_store/object_store.h).
//
// The failpoints are fs.write (at each Append), fs.sync, fs.link and fs.sync_folder (at the three
// steps of Commit), and fs.remove. The action `error` makes the step fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/fault/failpoints.h"

namespace evergrad::fs {

// A file that is invisible until Commit(). The destruction of a file without a commit leaves
// no trace. After an error every further call returns FailedPrecondition. An implementation may
// write in the background, and then returns the error of a write from a later call.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status Append(std::span<const std::byte> bytes) = 0;
  // Syncs the contents, creates the name, and syncs the folder. After OK the file survives a loss
  // of power. Returns AlreadyExists if the name has been taken meanwhile; an existing file is never
  // overwritten. After any other error the name is free again. A crash during the call may leave
  // the complete file, so the caller must not announce the file before OK. The same holds for the
  // errors Unavailable and Cancelled of an object store, whose answer may have been lost.
  virtual absl::Status Commit() = 0;
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual std::uint64_t size() const = 0;  // size at the time of opening
  // A text that changes whenever the contents of the file change, or "" if the file system has
  // none. For an object it is the object's etag.
  virtual std::string version() const { return ""; }
  // Fills `out` with the bytes from `offset` on, and returns their number, which is below
  // out.size() only at the end of the file.
  virtual absl::StatusOr<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> out) = 0;
};

struct ListedFile {
  std::string name;
  std::uint64_t bytes = 0;
  bool is_folder = false;
  friend bool operator==(const ListedFile&, const ListedFile&) = default;
};

inline constexpr std::size_t kListEntriesMax = 1'000'000;

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Begins a new file. The errors are AlreadyExists for the name, and NotFound for its folder. (In
  // an object store no folder is needed.)
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(absl::string_view uri) = 0;
  // Like Create, but Commit replaces an existing file: readers see the old file or the new one.
  // Returns Unimplemented if the file system never replaces files.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Replace(absl::string_view uri);
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> Open(absl::string_view uri) = 0;
  // Lists a folder in the order of names, without files that are being written. Returns
  // ResourceExhausted above kListEntriesMax entries.
  virtual absl::StatusOr<std::vector<ListedFile>> List(absl::string_view uri) = 0;
  // Removes a file or an empty folder; the removal is durable when the call returns. Open readers
  // can continue to read a local file; for an object they return NotFound.
  virtual absl::Status Remove(absl::string_view uri) = 0;
  virtual absl::StatusOr<bool> Exists(absl::string_view uri) = 0;
  // Creates a folder with all its parents; the folders are durable when the call returns. An
  // existing folder is OK.
  virtual absl::Status MakeFolders(absl::string_view uri) = 0;
};

class Roots;

struct LocalOptions {
  fault::Failpoints* failpoints = nullptr;  // may be null; outlives the file system
  // With true, files are written without a name (O_TMPFILE) if the file system supports it, so a
  // crash leaves no file. With false, files have a hidden temporary name and are locked. The next
  // writer in that folder removes the files whose writer has died.
  bool unnamed = true;
  // The folders in which all files must be; null for any folder. Paths outside of these folders
  // give PermissionDenied. The object outlives the file system.
  const Roots* roots = nullptr;
};
std::unique_ptr<FileSystem> MakeLocalFileSystem(LocalOptions options = {});

// Joins "file:///runs" and "a" to "file:///runs/a", and "s3://bucket" and "a" to "s3://bucket/a".
std::string JoinUri(absl::string_view folder, absl::string_view name);
// Split "file:///runs/a" into "file:///runs" and "a", and "a" into "." and "a".
std::string FolderOf(absl::string_view uri);
std::string NameOf(absl::string_view uri);

// Returns the contents of a small file, or ResourceExhausted if it is larger than `bytes_max`.
absl::StatusOr<std::string> ReadWhole(FileSystem& files, absl::string_view uri,
                                      std::uint64_t bytes_max);
// Calls Create, Append and Commit.
absl::Status WriteWhole(FileSystem& files, absl::string_view uri, absl::string_view bytes);

// Returns the status of a failed system call: its kind, the path, and a remedy.
absl::Status FileError(int error, absl::string_view what, absl::string_view path);

}  // namespace evergrad::fs

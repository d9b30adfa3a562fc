// Files by URI: written whole or not at all, read at any offset. What snapshots and manifests stand
// on.
//
// `file:///x` and plain paths are the local file system; any other scheme is refused by name
// (Unimplemented). A commit needs neither a rename of a folder nor an append nor a second write to
// a file that is there: an object store can do the same.
//
// Blocking: from I/O threads only, never from an executor. A FileSystem is thread-safe, an open
// file belongs to one thread. Errors name the path and what can be done: NotFound, AlreadyExists,
// PermissionDenied, ResourceExhausted (disk or quota full, too many open files), FailedPrecondition
// (a folder where a file is meant, or the reverse), InvalidArgument (the URI), DataLoss (the device
// reports an error).
//
// Failpoints: fs.write (each Append), fs.sync, fs.link, fs.sync_folder (the three steps of Commit),
// fs.remove. `error` fails the step; `drop` leaves fs.sync or fs.sync_folder out, which only a
// crash can show.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/fault/failpoints.h"

namespace evergrad::fs {

// A file that nobody sees before Commit(). Destroyed without one it leaves nothing behind. After an
// error every further call is FailedPrecondition.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status Append(std::span<const std::byte> bytes) = 0;
  // Contents to the disk, then the name, then the folder to the disk: OK means that it outlives a
  // loss of power. AlreadyExists: somebody took the name meanwhile; it is never written over. After
  // any other error the name is free again, but for a crash in that moment, which may leave the
  // whole file there: the caller must not have promised it to anybody.
  virtual absl::Status Commit() = 0;
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual std::uint64_t size() const = 0;  // when it was opened
  // Fills `out` from `offset` on and returns the bytes read: fewer than asked for at the end of the
  // file only.
  virtual absl::StatusOr<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> out) = 0;
};

struct Entry {
  std::string name;
  std::uint64_t bytes = 0;
  bool is_folder = false;
  friend bool operator==(const Entry&, const Entry&) = default;
};

inline constexpr std::size_t kListEntriesMax = 1'000'000;

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Begins a new file. AlreadyExists at once when the name is taken; NotFound: its folder is not
  // there.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(absl::string_view uri) = 0;
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> Open(absl::string_view uri) = 0;
  // What is in a folder, by name; files that are being written are not. ResourceExhausted: more
  // than kListEntriesMax.
  virtual absl::StatusOr<std::vector<Entry>> List(absl::string_view uri) = 0;
  // A file or an empty folder; durable when it returns. Who has it open reads on.
  virtual absl::Status Remove(absl::string_view uri) = 0;
  virtual absl::StatusOr<bool> Exists(absl::string_view uri) = 0;
  // With all parents; durable when it returns. A folder that is there is OK.
  virtual absl::Status MakeFolders(absl::string_view uri) = 0;
};

class Roots;

struct LocalOptions {
  fault::Failpoints* failpoints = nullptr;  // May be null; outlives the file system.
  // Written without a name (O_TMPFILE) where the file system can: a crash leaves nothing.
  // Otherwise, or with false, under a hidden temporary name, locked: who writes next in that folder
  // removes those whose writer is dead.
  bool unnamed = true;
  const Roots* roots = nullptr;  // Where files may lie; null: anywhere. Outlives the file system.
                                 // Outside: PermissionDenied.
};
std::unique_ptr<FileSystem> MakeLocalFileSystem(LocalOptions options = {});

// The twin in memory, for tests and simulation. Takes the same URIs; knows what has reached the
// "disk" and can lose the rest.
class MemoryFileSystem final : public FileSystem {
 public:
  struct Options {
    fault::Failpoints* failpoints = nullptr;
    std::uint64_t bytes_max = ~0ull;  // of all files: beyond it the disk is full
  };
  MemoryFileSystem() : MemoryFileSystem(Options()) {}
  explicit MemoryFileSystem(Options options);
  ~MemoryFileSystem() override;

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(absl::string_view uri) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(absl::string_view uri) override;
  absl::StatusOr<std::vector<Entry>> List(absl::string_view uri) override;
  absl::Status Remove(absl::string_view uri) override;
  absl::StatusOr<bool> Exists(absl::string_view uri) override;
  absl::Status MakeFolders(absl::string_view uri) override;

  // A loss of power. Names not synced to their folder and contents not synced are gone (seed 0), or
  // are there or not, whole, cut short or zeroed, by `seed`. Files open before it are dead: every
  // call fails.
  void Crash(std::uint64_t seed);
  // Changes one byte where it lies, durably: damage. InvalidArgument: no such file or byte.
  absl::Status Damage(absl::string_view uri, std::uint64_t offset, std::byte flip);
  absl::Status Truncate(absl::string_view uri, std::uint64_t bytes);
  void SetBytesMax(std::uint64_t bytes);
  std::uint64_t bytes() const;  // of all files with a name

 private:
  friend class MemoryWriter;
  friend class MemoryReader;
  struct Inode {
    std::string bytes;
    bool synced = false;
  };
  absl::StatusOr<std::string> PathOf(absl::string_view uri) const;
  std::uint64_t BytesLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  mutable Mutex mu_;
  std::uint64_t bytes_max_ ABSL_GUARDED_BY(mu_);
  std::uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;  // of crashes
  std::uint64_t unnamed_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<std::string> folders_ ABSL_GUARDED_BY(mu_);
  // Shared by the name and by whoever has the file open.
  std::map<std::string, std::shared_ptr<Inode>> files_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<Inode>> durable_
      ABSL_GUARDED_BY(mu_);  // as the folders on the disk have it
};

// "file:///runs" and "a" -> "file:///runs/a".
std::string JoinUri(absl::string_view folder, absl::string_view name);
// "file:///runs/a" -> "file:///runs", "a"; "a" -> ".", "a".
std::string FolderOf(absl::string_view uri);
std::string NameOf(absl::string_view uri);

// A whole small file. ResourceExhausted above `bytes_max`.
absl::StatusOr<std::string> ReadWhole(FileSystem& files, absl::string_view uri,
                                      std::uint64_t bytes_max);
// Create, Append, Commit.
absl::Status WriteWhole(FileSystem& files, absl::string_view uri, absl::string_view bytes);

// The status of a failed system call: its kind, the path, and what to do.
absl::Status FileError(int error, absl::string_view what, absl::string_view path);

}  // namespace evergrad::fs

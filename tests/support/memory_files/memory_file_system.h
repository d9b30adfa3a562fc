// A file system in memory, for tests. It takes the same URIs as a local file system. It tracks
// which data has reached the simulated disk, and can lose the other data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/fault/failpoints.h"
#include "common/fs/file_system.h"

namespace evergrad::fs {

class MemoryFileSystem final : public FileSystem {
 public:
  struct Options {
    fault::Failpoints* failpoints = nullptr;
    // The size of the simulated disk: the limit for the sizes of all files together.
    std::uint64_t bytes_max = ~0ull;
    // If false, the sync of contents or of folders has no effect. Only Crash shows the difference.
    bool syncs_files = true;
    bool syncs_folders = true;
  };
  MemoryFileSystem() : MemoryFileSystem(Options()) {}
  explicit MemoryFileSystem(Options options);
  ~MemoryFileSystem() override;

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(absl::string_view uri) override;
  absl::StatusOr<std::unique_ptr<WritableFile>> Replace(absl::string_view uri) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(absl::string_view uri) override;
  absl::StatusOr<std::vector<ListedFile>> List(absl::string_view uri) override;
  absl::Status Remove(absl::string_view uri) override;
  absl::StatusOr<bool> Exists(absl::string_view uri) override;
  absl::Status MakeFolders(absl::string_view uri) override;

  // Simulates a loss of power. With seed 0, the crash loses the contents of files that were not
  // synced, and all changes of names in folders that were not synced. With any other seed, the seed
  // decides at random for each name whether it keeps its new state, and for each unsynced file how
  // many bytes are kept and whether the other bytes are lost or become zeros. Every later call on a
  // file that was open before the crash fails.
  void Crash(std::uint64_t seed);
  // Damages one byte of a file, durably. Returns InvalidArgument if there is no such file or byte.
  absl::Status Damage(absl::string_view uri, std::uint64_t offset, std::byte flip);
  absl::Status Truncate(absl::string_view uri, std::uint64_t bytes);
  void SetBytesMax(std::uint64_t bytes);
  std::uint64_t bytes() const;  // sum of the sizes of all named files

 private:
  friend class MemoryWriter;
  friend class MemoryReader;
  struct Inode {
    std::string bytes;
    bool synced = false;
  };
  absl::StatusOr<std::string> PathOf(absl::string_view uri) const;
  absl::StatusOr<std::unique_ptr<WritableFile>> Begin(absl::string_view uri, bool replaces);
  std::uint64_t BytesLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  mutable Mutex mu_;
  std::uint64_t bytes_max_ ABSL_GUARDED_BY(mu_);
  std::uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;  // incremented by each crash
  std::uint64_t unnamed_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<std::string> folders_ ABSL_GUARDED_BY(mu_);
  // An inode is shared by its name and by the open files that refer to it.
  std::map<std::string, std::shared_ptr<Inode>> files_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<Inode>> durable_
      ABSL_GUARDED_BY(mu_);  // the names that the simulated disk has
};

}  // namespace evergrad::fs

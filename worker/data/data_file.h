// A user's data file, plain or compressed with gzip. Gzip data is decompressed while it is read.
// The file may lie in an object store; a copy of it is then read (object_cache.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/fs/descriptor.h"
#include "worker/data/dataset.h"

namespace evergrad::worker {

// Errors are user errors and name the file. Not thread-safe.
class DataFile {
 public:
  // `want` describes the expected kind of file: "an idx file". A file outside of `options.roots` is
  // refused (PermissionDenied), and so is a path that is not a regular file. Unsupported
  // compressions (xz, bzip2, zip, …) are refused by name.
  static absl::StatusOr<std::unique_ptr<DataFile>> Open(const std::string& path,
                                                        const DataOptions& options,
                                                        absl::string_view want);
  ~DataFile();

  // Reads the next decompressed bytes; returns fewer than `bytes` only at the end. As with the gzip
  // program, a file may have several members, and zeros after the last member. Other bytes after
  // the last member, a wrong checksum and a truncated member are errors.
  absl::StatusOr<std::size_t> Read(void* to, std::size_t bytes);
  // Drops the first `used` bytes of `buffer` and appends the next 256 KiB of the file, for readers
  // of text. Returns true if the buffer holds the rest of the file.
  absl::StatusOr<bool> Refill(std::size_t used, std::string* buffer);

  const std::string& path() const { return path_; }
  bool packed() const { return stream_ != nullptr; }
  std::uint64_t stored_bytes() const { return stored_bytes_; }
  std::uint64_t offset() const { return offset_; }  // offset of the next decompressed byte
  // Returns the fingerprint (fingerprint.h) of the open file, even if its path now leads to another
  // file.
  absl::StatusOr<std::string> Fingerprint() const;

 private:
  struct Stream;
  DataFile(std::string path, fs::Descriptor file, std::string version, std::uint64_t stored_bytes);
  absl::StatusOr<std::size_t> ReadStored(char* to, std::size_t bytes);
  absl::StatusOr<std::size_t> Unpack(char* to, std::size_t bytes);
  // At the end of a gzip member, returns whether another member follows.
  absl::StatusOr<bool> NextMember();
  absl::Status Damaged(absl::string_view why) const;

  const std::string path_;
  const fs::Descriptor file_;
  const std::string version_;  // version of an object; "" for a local file
  const std::uint64_t stored_bytes_;
  std::uint64_t offset_ = 0;
  std::unique_ptr<Stream> stream_;  // nullptr for a plain file
};

}  // namespace evergrad::worker
